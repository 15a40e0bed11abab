"""The committed stubs are those that ``./dev stubs`` generates from ``runtime.proto``."""

import subprocess
import sys
from pathlib import Path

import kurma_cri.proto

PROTO = Path(kurma_cri.proto.__file__).parent


def test_the_stubs_agree_with_their_source(tmp_path):
    root = PROTO.parents[1]
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    source = PROTO.relative_to(root) / "runtime.proto"
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *outputs, source], cwd=root, check=True)
    made = {path.name: path.read_text() for path in tmp_path.glob("kurma_cri/proto/*")}
    assert len(made) == 3
    assert {path.name: path.read_text() for path in PROTO.glob("*_pb2*.py*")} == made
