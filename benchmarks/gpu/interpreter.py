"""Whether Triton's interpreter, in which its kernels run on a CPU, works with the packages that are installed."""

from __future__ import annotations

from importlib.metadata import version


def why_not() -> str:
    """Empty where it does. triton itself is not loaded: that decides whether it interprets."""
    triton, numpy = version("triton"), version("numpy")
    # Before 3.7 it makes an int of an array with one axis, which NumPy has refused since 2.4.
    if _numbers(triton) < (3, 7) and _numbers(numpy) >= (2, 4):
        return f"the interpreter of triton {triton} does not run with NumPy {numpy}: it takes triton 3.7"
    return ""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2])
