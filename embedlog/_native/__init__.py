"""The C core: `_core` (no Python object inside) and `_rows` (objects only).

N1  `lib` and `ffi` are seen in this folder alone; what leaves it is typed Python
N2  a pointer lives as long as the call it is made for; the interpreter's lock is free during every call into `_core`
"""
