"""Model folders made by hand for tests: every byte of a file is the test's own choice."""

import json
import math
from pathlib import Path

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 2}

# Bits of one element, by the format's specification (https://github.com/huggingface/safetensors).
ELEMENT_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}


def file_bytes(header, data=b"", *, header_length=None):
    """A safetensors file: length of the header, the header (bytes, or an object), the data."""
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    length = len(header) if header_length is None else header_length
    return length.to_bytes(8, "little") + header + data


def header_of(tensors):
    """The header of `tensors`, name -> (dtype, shape), laid out in their order without gaps."""
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * ELEMENT_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    return header


def tensors_bytes(tensors):
    """A safetensors file of `tensors`, name -> (dtype, shape, bytes), in their order."""
    header = header_of({name: (dtype, shape) for name, (dtype, shape, _) in tensors.items()})
    return file_bytes(header, b"".join(data for _, _, data in tensors.values()))


def bytes_by_header(raw):
    """Name -> bytes, as the header of a valid file says: the plain reading of the format."""
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    body = raw[8 + length :]
    return {name: body[slice(*entry["data_offsets"])] for name, entry in header.items()}


def write_folder(folder, files):
    """Write name -> bytes, text, or an object to be JSON, into a new folder; config.json too."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": CONFIG, **files}.items():
        if content is None:
            continue
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        if isinstance(content, str):
            content = content.encode()
        (folder / name).write_bytes(content)
    return folder
