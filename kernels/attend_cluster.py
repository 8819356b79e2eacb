"""lab"""


def shared_bytes(hd: int, warps: int, keys: int, values: int) -> int:
    """Lab."""
    return warps * (keys + values) * (16 * hd * 2 + 8) + warps * 8 * 8
