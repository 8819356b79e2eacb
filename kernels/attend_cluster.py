"""lab"""
def shared_bytes(hd, warps, stages):
    ring = warps * 2 * stages * 16 * hd * 2
    return ring + warps * stages * 16 + warps * 8 * 8
