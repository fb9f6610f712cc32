"""The one store for everything that setgrad writes: files and folders that are replaced as a whole or not at all."""

from setgrad._files._folder import LEFTOVERS, MANIFEST, check_takes_files, is_as_written, read_folder, write_folder
from setgrad._files._json import from_json, to_json
from setgrad._files._tensors import from_tensor_bytes, read_tensors, tensor_bytes, write_tensors
from setgrad._files._write import atomic_write, check_writable, owned_file, previous_of, replace_file

__all__ = [
    "LEFTOVERS",
    "MANIFEST",
    "atomic_write",
    "check_takes_files",
    "check_writable",
    "from_json",
    "from_tensor_bytes",
    "is_as_written",
    "owned_file",
    "previous_of",
    "read_folder",
    "read_tensors",
    "replace_file",
    "tensor_bytes",
    "to_json",
    "write_folder",
    "write_tensors",
]
