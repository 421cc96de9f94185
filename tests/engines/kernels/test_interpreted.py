"""Runs the checks of the Triton kernels in a process of its own: on a GPU where there is one, else interpreted.

Whether Triton compiles or interprets is decided when it is imported, once for the whole process. One file at a time:
TRITON_INTERPRET=1 pytest tests/engines/kernels/checks/check_decode.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import interpreter

pytest.importorskip("triton", reason="triton is not installed: the GPU kernels go unchecked")

CHECKS = Path(__file__).parent / "checks"
GPU = torch.cuda.is_available()


@pytest.mark.skipif(not GPU and bool(interpreter.why_not()), reason=interpreter.why_not())
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("speed", ["fast", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_agree_with_their_oracles(speed: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-W", "ignore", "-p", "no:cacheprovider"]
    command += ["-o", "python_files=check_*.py", "-m", "slow" if speed == "slow" else "not slow", str(CHECKS)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if not GPU:
        # Threads on tensors this small only wait for one another.
        environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
