"""A built wheel, installed in a fresh environment, finds its kernels and its pairs and decodes."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SCRIPT = """
import splashlite
from splashlite.data import data_folder
from splashlite.pairs.resolve import known_names
assert {root!r} not in splashlite.__file__, splashlite.__file__
assert list(data_folder("metal").glob("*.metal")) and "smollm2-135m" in known_names()
reply = splashlite.load().generate("The capital of France is", max_tokens=4, temperature=0)
print(reply.text, reply.stats.speculation)
"""


@pytest.mark.slow
def test_an_installed_wheel_decodes_with_the_demo_pair(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("splashlite/metal/") for name in names)
    assert "splashlite/models/smollm2-135m/drafter/model.safetensors" in names
    assert not any(name.startswith(("tests", "benchmarks")) for name in names)

    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], check=True, capture_output=True)
    site = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True, capture_output=True, text=True)
    # The dependencies are those of this environment: what is tested is our wheel, not the network.
    (Path(site.stdout.strip()) / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    done = subprocess.run([python, "-c", SCRIPT.format(root=str(ROOT))], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout and "on" in done.stdout
    listed = subprocess.run([tmp_path / "env" / "bin" / "splashlite", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
