"""Arrays on a device, and what looks like one where there is none."""

import types


class OnDevice:
    """An array with an address, as CuPy's have; nothing lies there."""

    def __init__(self, array, address=256):
        self.dtype, self.shape, self.strides = array.dtype, array.shape, array.strides
        self.flags, self.nbytes = array.flags, array.nbytes
        self.data = types.SimpleNamespace(ptr=address)


def copy_to(device, values):
    """A copy of a NumPy array in new memory of a device."""
    array = device.allocate_bytes(values.nbytes).view(values.dtype).reshape(values.shape)
    device.write(array, values)
    return array
