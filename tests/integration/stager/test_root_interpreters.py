"""The default stager made of what runs Kurma: the system's interpreter, one's own, an environment's (H1)."""

import glob
import json
import os
import subprocess
import sys

import kurma_stager_default
import pytest

import kurma_core
from kurma_core.appc.image import ImageManifest
from kurma_core.staging.stager_process import StagerImage
from tests.kit.images import shell

pytestmark = pytest.mark.root

_BUILD = """
import json, sys
from kurma_stager_default import image
print(json.dumps([image.interpreter(), dict(image.build(sys.argv[1]))]))
"""
#: Interpreters of one's own, where there are any; the running one is always there.
_OWN = sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.1[1-9].*/bin/python3")))


def built(python, path):
    """By that interpreter: the program that it takes, and the image."""
    packages = [os.path.dirname(module.__path__[0]) for module in (kurma_core, kurma_stager_default)]
    environment = {"PYTHONPATH": ":".join(packages), "PATH": "/nowhere", "PYTHONHASHSEED": "random"}
    done = subprocess.run(
        [python, "-B", "-c", _BUILD, path], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    program, manifest = json.loads(done.stdout)
    return program, StagerImage("sha512-" + "0" * 128, path, ImageManifest.parse(manifest))


def lives(pods, image):
    pod = pods({"main": shell("echo here; exec sleep 1000")}, stager_image=image).started()
    pod.wait_log("here")
    assert pod.run("sh", "-c", "exit 7")[0] == 7
    code, out, _ = pod.call("logs", "main")
    assert (code, out) == (0, "here\n")
    assert json.loads(pod.call("status")[1])["main"]["exited"] is False
    assert pod.stop() == 0


@pytest.mark.parametrize("python", [sys.executable, *_OWN], ids=lambda path: "-".join(path.split("/")[-3:]))
def test_an_interpreter(pods, tmp_path, python):
    """What it makes is run by the same version, and by nothing of this machine's files."""
    program, image = built(python, str(tmp_path / "image"))
    assert os.path.realpath(program) == program
    said = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    notes = {note.name: note.value for note in image.manifest.annotations}
    assert notes["kurma.io/stager/python"] == said
    lives(pods, image)


@pytest.mark.full
def test_a_virtual_environment(pods, tmp_path):
    """Links to its interpreter, and what is installed in it, stay outside."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    site = next((environment / "lib").glob("python3.*/site-packages"))
    (site / "sitecustomize.py").write_text("raise SystemExit('of the environment')")
    (site / "select.py").write_text("raise SystemExit('of the environment')")
    _, plain = built(sys.executable, str(tmp_path / "plain"))
    program, image = built(str(environment / "bin/python3"), str(tmp_path / "image"))
    assert not program.startswith(str(environment))
    assert not list((tmp_path / "image").rglob("site*"))
    assert image.manifest == plain.manifest
    lives(pods, image)
