"""The C kernels' structs as ctypes; the C files say what the fields mean."""

import ctypes as c

Q4, Q8 = 4, 8
STORE, ADD, SILU_MUL = 0, 1, 2
MULTIPLY, ATTEND = 0, 1
_TYPES = {"int": c.c_int32, "long": c.c_int64, "float": c.c_float, "pointer": c.c_void_p}


def _fields(*groups: str) -> list[tuple[str, type]]:
    """("int rows heads", "float scale"): runs of fields of one type."""
    return [(name, _TYPES[group.split()[0]]) for group in groups for name in group.split()[1:]]


class Matrix(c.Structure):
    """rl_matrix of linear.c."""

    _fields_ = _fields("int format planes n k", "pointer tiles")


class Product(c.Structure):
    """rl_product of linear.c."""

    _fields_ = _fields("int rows epilogue threads", "float eps", "long in_stride out_stride residual_stride",
                       "pointer input norm residual out codes scales sums")


class Attention(c.Structure):
    """rl_attention of attention.c."""

    _fields_ = _fields("int rows heads kv_heads head_dim rotary_dim bf16 block_size window threads",
                       "float scale eps", "int chunks padding",
                       "pointer qkv cosine sine q_norm k_norm sinks position table sequence run_start keys",
                       "pointer values out queries partial",
                       "long qkv_stride angle_stride table_stride page_stride slot_stride head_stride")


class Call(c.Structure):
    """rl_call of tape.c: one MULTIPLY or ATTEND."""

    _fields_ = _fields("int kind padding", "pointer matrix arguments")
