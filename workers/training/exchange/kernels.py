"""The scaled number formats as one kernel for each direction, in Triton, where torch's operators take ten each.

Codes, scales and values are those of ``codecs`` and ``two_four`` on a CPU, bit for bit, of blocks that are finite. A
program works on P blocks, which are the rows of its tiles. Imports Triton, which not every machine has.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_LEAST = tl.constexpr(1e-36)  # as in codecs: the reciprocal of what lies below it might overflow
_ROUNDING = tl.constexpr(12582912.0)  # 1.5 * 2**23: added and taken away again, it leaves the nearest whole number
_BLOCK = tl.constexpr(256)
_HALF = tl.constexpr(128)
_LANE = tl.constexpr(64)
_HALF_LANE = tl.constexpr(32)
_BLOCKS = 8  # of a program: sixteen values a thread


def encode(
    kind: str, largest: float, values_RN: torch.Tensor, out_RB: torch.Tensor, error_RN: torch.Tensor | None
) -> None:
    """As ``Codec.encode`` of the format ``kind``; ``largest`` is the code of a block's largest value."""
    error = values_RN if error_RN is None else error_RN  # which is not written then
    strides = (values_RN.stride(0), out_RB.stride(0), error.stride(0))
    options = {"largest": largest, "has_error": error_RN is not None}
    _launch(_ENCODE[kind], values_RN, (values_RN, out_RB, error), strides, options, kind)


def decode(kind: str, payload_RB: torch.Tensor, out_RN: torch.Tensor) -> None:
    """As ``Codec.decode`` of the format ``kind``."""
    _launch(_DECODE[kind], out_RN, (payload_RB, out_RN), (payload_RB.stride(0), out_RN.stride(0)), {}, kind)


def _launch(
    kernel: Any,
    values_RN: torch.Tensor,
    tensors: tuple[torch.Tensor, ...],
    strides: tuple[int, ...],
    options: dict[str, Any],
    kind: str,
) -> None:
    num_rows, num_blocks = values_RN.shape[0], values_RN.shape[1] // _BLOCK.value
    if num_rows == 0 or num_blocks == 0:
        return
    is_half = {"is_half": kind == "fp16"} if kind in ("fp16", "int8") else {}
    # Without fused products and sums results are those of torch's operators, which round in between.
    kernel[(triton.cdiv(num_blocks, _BLOCKS), num_rows)](
        *tensors, num_blocks, *strides, **options, **is_half, num_programs_blocks=_BLOCKS, enable_fp_fusion=False
    )


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _nearest(values):
    return (values + _ROUNDING) - _ROUNDING


@triton.jit
def _scales(largest_P, largest: tl.constexpr):
    return tl.div_rn(largest_P, tl.full(largest_P.shape, largest, tl.float32))


@triton.jit
def _inverse(scales):
    # Of what would overflow it is 0; of NaN it is NaN, as of a comparison with it nothing is true.
    return tl.where(scales < _LEAST, 0.0, tl.div_rn(tl.full(scales.shape, 1.0, tl.float32), scales))


@triton.jit
def _blocks(num_programs_blocks: tl.constexpr):
    return tl.program_id(0) * num_programs_blocks + tl.arange(0, num_programs_blocks)


@triton.jit(do_not_specialize=["num_blocks"])
def _encode_whole(
    values,
    payload,
    error,
    num_blocks,
    values_stride,
    payload_stride,
    error_stride,
    largest: tl.constexpr,
    has_error: tl.constexpr,
    is_half: tl.constexpr,
    num_programs_blocks: tl.constexpr,
):
    row, blocks_P = tl.program_id(1).to(tl.int64), _blocks(num_programs_blocks)
    is_in_P, is_in_P1 = blocks_P < num_blocks, (blocks_P < num_blocks)[:, None]
    places_PE = blocks_P[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    values_PE = tl.load(values + row * values_stride + places_PE, mask=is_in_P1, other=0.0)
    scales_P = _scales(tl.reduce(tl.abs(values_PE), 1, _larger), largest)
    codes_PE = values_PE * _inverse(scales_P)[:, None]
    codes = payload + row * payload_stride
    if is_half:
        halves_PE = codes_PE.to(tl.float16)
        tl.store(codes.to(tl.pointer_type(tl.float16)) + places_PE, halves_PE, mask=is_in_P1)
        codes_PE = halves_PE.to(tl.float32)
        scales = codes + num_blocks * _BLOCK * 2
    else:
        codes_PE = _nearest(codes_PE)
        tl.store(codes.to(tl.pointer_type(tl.int8)) + places_PE, codes_PE.to(tl.int8), mask=is_in_P1)
        scales = codes + num_blocks * _BLOCK
    tl.store(scales.to(tl.pointer_type(tl.float32)) + blocks_P, scales_P, mask=is_in_P)
    if has_error:
        tl.store(error + row * error_stride + places_PE, values_PE - codes_PE * scales_P[:, None], mask=is_in_P1)


@triton.jit(do_not_specialize=["num_blocks"])
def _decode_whole(
    payload,
    values,
    num_blocks,
    payload_stride,
    values_stride,
    is_half: tl.constexpr,
    num_programs_blocks: tl.constexpr,
):
    row, blocks_P = tl.program_id(1).to(tl.int64), _blocks(num_programs_blocks)
    is_in_P, is_in_P1 = blocks_P < num_blocks, (blocks_P < num_blocks)[:, None]
    places_PE = blocks_P[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    codes = payload + row * payload_stride
    if is_half:
        codes_PE = tl.load(codes.to(tl.pointer_type(tl.float16)) + places_PE, mask=is_in_P1, other=0.0)
        scales = codes + num_blocks * _BLOCK * 2
    else:
        codes_PE = tl.load(codes.to(tl.pointer_type(tl.int8)) + places_PE, mask=is_in_P1, other=0)
        scales = codes + num_blocks * _BLOCK
    scales_P = tl.load(scales.to(tl.pointer_type(tl.float32)) + blocks_P, mask=is_in_P, other=0.0)
    tl.store(values + row * values_stride + places_PE, codes_PE.to(tl.float32) * scales_P[:, None], mask=is_in_P1)


@triton.jit(do_not_specialize=["num_blocks"])
def _encode_int4(
    values,
    payload,
    error,
    num_blocks,
    values_stride,
    payload_stride,
    error_stride,
    largest: tl.constexpr,
    has_error: tl.constexpr,
    num_programs_blocks: tl.constexpr,
):
    row, blocks_P = tl.program_id(1).to(tl.int64), _blocks(num_programs_blocks)
    is_in_P, is_in_P1 = blocks_P < num_blocks, (blocks_P < num_blocks)[:, None]
    halves_H = tl.arange(0, _HALF)[None, :]
    places_PH = blocks_P[:, None] * _BLOCK + halves_H
    values += row * values_stride
    lower_PH = tl.load(values + places_PH, mask=is_in_P1, other=0.0)
    upper_PH = tl.load(values + places_PH + _HALF, mask=is_in_P1, other=0.0)
    scales_P = _scales(tl.reduce(_larger(tl.abs(lower_PH), tl.abs(upper_PH)), 1, _larger), largest)
    inverse_P1 = _inverse(scales_P)[:, None]
    lower_codes_PH, upper_codes_PH = _nearest(lower_PH * inverse_P1), _nearest(upper_PH * inverse_P1)
    # 8 and 128: so both halves are positive, and their sum is a byte.
    packed_PH = (lower_codes_PH + upper_codes_PH * 16.0 + 136.0).to(tl.int32).to(tl.uint8)
    payload += row * payload_stride
    tl.store(payload + blocks_P[:, None] * _HALF + halves_H, packed_PH, mask=is_in_P1)
    scales = (payload + num_blocks * _HALF).to(tl.pointer_type(tl.float32))
    tl.store(scales + blocks_P, scales_P, mask=is_in_P)
    if has_error:
        error += row * error_stride
        tl.store(error + places_PH, lower_PH - lower_codes_PH * scales_P[:, None], mask=is_in_P1)
        tl.store(error + places_PH + _HALF, upper_PH - upper_codes_PH * scales_P[:, None], mask=is_in_P1)


@triton.jit(do_not_specialize=["num_blocks"])
def _decode_int4(
    payload,
    values,
    num_blocks,
    payload_stride,
    values_stride,
    num_programs_blocks: tl.constexpr,
):
    row, blocks_P = tl.program_id(1).to(tl.int64), _blocks(num_programs_blocks)
    is_in_P, is_in_P1 = blocks_P < num_blocks, (blocks_P < num_blocks)[:, None]
    halves_H = tl.arange(0, _HALF)[None, :]
    payload += row * payload_stride
    packed_PH = tl.load(payload + blocks_P[:, None] * _HALF + halves_H, mask=is_in_P1, other=0).to(tl.int32)
    scales = (payload + num_blocks * _HALF).to(tl.pointer_type(tl.float32))
    scales_P1 = tl.load(scales + blocks_P, mask=is_in_P, other=0.0)[:, None]
    places = values + row * values_stride + blocks_P[:, None] * _BLOCK + halves_H
    tl.store(places, ((packed_PH & 15) - 8).to(tl.float32) * scales_P1, mask=is_in_P1)
    tl.store(places + _HALF, ((packed_PH >> 4) - 8).to(tl.float32) * scales_P1, mask=is_in_P1)


@triton.jit
def _lanes(values, places_PH):
    """Pointers to the four lanes of a half of each block."""
    first = values + places_PH
    return first, first + _LANE, first + 2 * _LANE, first + 3 * _LANE


@triton.jit
def _largest_of(values, places_PH, is_in_P1):
    a, b, c, d = _lanes(values, places_PH)
    a_PH, b_PH = tl.load(a, mask=is_in_P1, other=0.0), tl.load(b, mask=is_in_P1, other=0.0)
    c_PH, d_PH = tl.load(c, mask=is_in_P1, other=0.0), tl.load(d, mask=is_in_P1, other=0.0)
    ab_PH, cd_PH = _larger(tl.abs(a_PH), tl.abs(b_PH)), _larger(tl.abs(c_PH), tl.abs(d_PH))
    return tl.reduce(_larger(ab_PH, cd_PH), 1, _larger)


@triton.jit
def _two_of_four(values, codes, error, places_PH, is_in_P1, scales_P1, inverse_P1, has_error: tl.constexpr):
    """Store the codes of the two largest of each four, and what is left out; returns which they are, in 4 bits."""
    a, b, c, d = _lanes(values, places_PH)
    a_PH, b_PH = tl.load(a, mask=is_in_P1, other=0.0), tl.load(b, mask=is_in_P1, other=0.0)
    c_PH, d_PH = tl.load(c, mask=is_in_P1, other=0.0), tl.load(d, mask=is_in_P1, other=0.0)
    a_code, b_code = _nearest(a_PH * inverse_P1), _nearest(b_PH * inverse_P1)
    c_code, d_code = _nearest(c_PH * inverse_P1), _nearest(d_PH * inverse_P1)
    a_size, b_size, c_size, d_size = tl.abs(a_code), tl.abs(b_code), tl.abs(c_code), tl.abs(d_code)
    is_b, is_d = b_size > a_size, d_size > c_size
    is_ab = tl.minimum(a_size, b_size) >= tl.maximum(c_size, d_size)
    is_cd = tl.minimum(c_size, d_size) > tl.maximum(a_size, b_size)
    has_a, has_b = is_ab | ((is_b | is_cd) == 0), is_ab | (is_b & (is_cd == 0))
    has_c, has_d = is_cd | ((is_d | is_ab) == 0), is_cd | (is_d & (is_ab == 0))
    first = tl.where(has_a, a_code, tl.where(has_b, b_code, c_code))
    second = tl.where(has_d, d_code, tl.where(has_c, c_code, b_code))
    tl.store(codes, first.to(tl.int8), mask=is_in_P1)
    tl.store(codes + _LANE, second.to(tl.int8), mask=is_in_P1)
    if has_error:
        left_a, left_b, left_c, left_d = _lanes(error, places_PH)
        tl.store(left_a, a_PH - tl.where(has_a, a_code, 0.0) * scales_P1, mask=is_in_P1)
        tl.store(left_b, b_PH - tl.where(has_b, b_code, 0.0) * scales_P1, mask=is_in_P1)
        tl.store(left_c, c_PH - tl.where(has_c, c_code, 0.0) * scales_P1, mask=is_in_P1)
        tl.store(left_d, d_PH - tl.where(has_d, d_code, 0.0) * scales_P1, mask=is_in_P1)
    return has_a.to(tl.int32) + 2 * has_b.to(tl.int32) + 4 * has_c.to(tl.int32) + 8 * has_d.to(tl.int32)


@triton.jit(do_not_specialize=["num_blocks"])
def _encode_two_four(
    values,
    payload,
    error,
    num_blocks,
    values_stride,
    payload_stride,
    error_stride,
    largest: tl.constexpr,
    has_error: tl.constexpr,
    num_programs_blocks: tl.constexpr,
):
    row, blocks_P = tl.program_id(1).to(tl.int64), _blocks(num_programs_blocks)
    is_in_P, is_in_P1 = blocks_P < num_blocks, (blocks_P < num_blocks)[:, None]
    halves_H = tl.arange(0, _HALF_LANE)[None, :]
    places_PH = blocks_P[:, None] * _BLOCK + halves_H
    values, error = values + row * values_stride, error + row * error_stride
    lower_P = _largest_of(values, places_PH, is_in_P1)
    upper_P = _largest_of(values, places_PH + _HALF_LANE, is_in_P1)
    scales_P = _scales(_larger(lower_P, upper_P), largest)
    scales_P1, inverse_P1 = scales_P[:, None], _inverse(scales_P)[:, None]
    payload += row * payload_stride
    block_bytes: tl.constexpr = 2 * _LANE + _HALF_LANE
    codes = payload + blocks_P[:, None] * block_bytes + halves_H
    lower_PH = _two_of_four(
        values, codes.to(tl.pointer_type(tl.int8)), error, places_PH, is_in_P1, scales_P1, inverse_P1, has_error
    )
    upper_PH = _two_of_four(
        values,
        (codes + _HALF_LANE).to(tl.pointer_type(tl.int8)),
        error,
        places_PH + _HALF_LANE,
        is_in_P1,
        scales_P1,
        inverse_P1,
        has_error,
    )
    tl.store(codes + 2 * _LANE, (lower_PH + 16 * upper_PH).to(tl.uint8), mask=is_in_P1)
    scales = (payload + num_blocks * block_bytes).to(tl.pointer_type(tl.float32))
    tl.store(scales + blocks_P, scales_P, mask=is_in_P)


@triton.jit
def _four_of_two(codes, bits_PH, values, is_in_P1, scales_P1):
    """Store what the codes of the two largest of each four stand for, and zeros."""
    first = tl.load(codes, mask=is_in_P1, other=0).to(tl.float32) * scales_P1
    second = tl.load(codes + _LANE, mask=is_in_P1, other=0).to(tl.float32) * scales_P1
    none = 0.0 * scales_P1  # not finite where the block is not
    has_a, has_b, has_c, has_d = bits_PH & 1, bits_PH & 2, bits_PH & 4, bits_PH & 8
    tl.store(values, tl.where(has_a != 0, first, none), mask=is_in_P1)
    tl.store(values + _LANE, tl.where(has_b != 0, tl.where(has_a != 0, second, first), none), mask=is_in_P1)
    tl.store(values + 2 * _LANE, tl.where(has_c != 0, tl.where(has_d != 0, first, second), none), mask=is_in_P1)
    tl.store(values + 3 * _LANE, tl.where(has_d != 0, second, none), mask=is_in_P1)


@triton.jit(do_not_specialize=["num_blocks"])
def _decode_two_four(
    payload,
    values,
    num_blocks,
    payload_stride,
    values_stride,
    num_programs_blocks: tl.constexpr,
):
    row, blocks_P = tl.program_id(1).to(tl.int64), _blocks(num_programs_blocks)
    is_in_P, is_in_P1 = blocks_P < num_blocks, (blocks_P < num_blocks)[:, None]
    halves_H = tl.arange(0, _HALF_LANE)[None, :]
    payload += row * payload_stride
    block_bytes: tl.constexpr = 2 * _LANE + _HALF_LANE
    codes = payload + blocks_P[:, None] * block_bytes + halves_H
    scales = (payload + num_blocks * block_bytes).to(tl.pointer_type(tl.float32))
    scales_P1 = tl.load(scales + blocks_P, mask=is_in_P, other=0.0)[:, None]
    bits_PH = tl.load(codes + 2 * _LANE, mask=is_in_P1, other=0).to(tl.int32)
    places = values + row * values_stride + blocks_P[:, None] * _BLOCK + halves_H
    whole = tl.pointer_type(tl.int8)
    _four_of_two(codes.to(whole), bits_PH & 15, places, is_in_P1, scales_P1)
    _four_of_two((codes + _HALF_LANE).to(whole), bits_PH >> 4, places + _HALF_LANE, is_in_P1, scales_P1)


_ENCODE = {"fp16": _encode_whole, "int8": _encode_whole, "int4": _encode_int4, "two_four": _encode_two_four}
_DECODE = {"fp16": _decode_whole, "int8": _decode_whole, "int4": _decode_int4, "two_four": _decode_two_four}
