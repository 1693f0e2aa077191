#!/usr/bin/env python3
"""Packs the package for Python, the program and the library into a wheel, and the sources into an sdist.

    tools/make_wheel.py FOLDER   # from build/fidelio_alone and build/libfidelio.so; `./do wheel` goes on from there

It is also the build backend of pyproject.toml (PEP 517), which compiles first. The wheel has no code of a version of
Python, as ctypes loads the library, so one wheel serves all. Its bytes depend on its contents alone."""
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TAG = "py3-none-linux_x86_64"
EPOCH = (1980, 1, 1, 0, 0, 0)
BINARIES = {"fidelio": "fidelio_alone", "libfidelio.so": "libfidelio.so"}  # in the wheel, in the build folder


def read(*path):
    with open(os.path.join(ROOT, *path), "rb") as file:
        return file.read()


def version():
    return re.search(rb"project\(fidelio VERSION ([\d.]+)", read("CMakeLists.txt"))[1].decode()


def metadata():
    project = read("pyproject.toml").decode()
    extras = re.search(r'^all = \[(.*)\]$', project, re.M)[1].replace('"', "").split(", ")
    lines = ["Metadata-Version: 2.1", "Name: fidelio", f"Version: {version()}",
             "Summary: " + re.search(r'^description = "(.*)"$', project, re.M)[1],
             "Requires-Python: " + re.search(r'^requires-python = "(.*)"$', project, re.M)[1],
             "Provides-Extra: all", *(f'Requires-Dist: {name}; extra == "all"' for name in extras),
             "Description-Content-Type: text/markdown"]
    return "\n".join(lines).encode() + b"\n\n" + read("docs", "python.md")


def entry_points():
    """The tables of pyproject.toml in the form that wheels have."""
    project = read("pyproject.toml").decode()
    tables = {"project.scripts": "console_scripts"}
    text = ""
    for title, body in re.findall(r"^\[(project\.[\w.\"-]+)\]\n((?:[^\[\n].*\n)*)", project, re.M):
        group = tables.get(title) or (title.split('"')[1] if "entry-points" in title else None)
        if group:
            text += f"[{group}]\n" + body.replace('"', "")
    return text.encode()


def notices():
    """The licences of what the wheel brings along: the libraries that auditwheel adds, and those that are linked in."""
    files = set()
    for built in BINARIES.values():
        linked = subprocess.run(["ldd", os.path.join(ROOT, "build", built)], check=True, capture_output=True, text=True).stdout
        files |= set(re.findall(r"=> (/\S+)", linked))
    packages = {"libedit-dev", "libbsd-dev", "libmd-dev", "libboost-dev", "nlohmann-json3-dev", "libcli11-dev"}
    for path in files:
        owner = subprocess.run(["dpkg", "-S", "*/x86_64-linux-gnu/" + os.path.basename(path)], capture_output=True, text=True).stdout
        packages |= {line.split(":")[0] for line in owner.splitlines()}
    for package in sorted(packages - {"libc6", "libgcc-s1", "libstdc++6"}):  # Every Linux has these, and none is in the wheel.
        path = f"/usr/share/doc/{package}/copyright"
        if os.path.exists(path):
            yield package, read(path)


def contents():
    """Every file of the wheel: (its name, its bytes, whether it is run)."""
    package = os.path.join(ROOT, "python", "fidelio")
    for name in sorted(os.listdir(package)):
        if name.endswith(".py") or name == "py.typed":
            yield f"fidelio/{name}", read("python", "fidelio", name), False
    for name, built in BINARIES.items():
        yield f"fidelio/bin/{name}", read("build", built), True
    info = f"fidelio-{version()}.dist-info"
    yield f"{info}/METADATA", metadata(), False
    yield f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: fidelio\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode(), False
    yield f"{info}/entry_points.txt", entry_points(), False
    yield f"{info}/licenses/LICENSE", read("LICENSE"), False
    yield f"{info}/licenses/texts.md", read("models", "data", "README.md"), False
    for package, text in notices():
        yield f"{info}/licenses/{package}", text, False


def pack(folder):
    os.makedirs(folder, exist_ok=True)
    name = f"fidelio-{version()}-{TAG}.whl"
    records = []
    with zipfile.ZipFile(os.path.join(folder, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(path, data, runs):
            info = zipfile.ZipInfo(path, EPOCH)
            info.external_attr = (0o100755 if runs else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(info, data)

        for path, data, runs in contents():
            add(path, data, runs)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{path},sha256={digest},{len(data)}")
        record = f"fidelio-{version()}.dist-info/RECORD"
        add(record, "\n".join([*records, f"{record},,", ""]).encode(), False)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build = os.path.join(ROOT, "build")
    if not os.path.exists(os.path.join(build, "build.ninja")):
        subprocess.run(["cmake", "--preset", "cpu"], cwd=ROOT, check=True)
    subprocess.run(["ninja", "-C", build, "fidelio_alone", "fidelio_shared"], check=True)
    return pack(wheel_directory)


def build_sdist(sdist_directory, config_settings=None):
    """The files that git knows, below one folder."""
    base = f"fidelio-{version()}"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    with tempfile.TemporaryDirectory() as scratch:
        about = os.path.join(scratch, "PKG-INFO")
        with open(about, "wb") as file:
            file.write(metadata())
        with tarfile.open(os.path.join(sdist_directory, base + ".tar.gz"), "w:gz", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted(filter(None, names)):
                archive.add(os.path.join(ROOT, name), f"{base}/{name}", recursive=False)
            archive.add(about, f"{base}/PKG-INFO")
    return base + ".tar.gz"


if __name__ == "__main__":
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    print(os.path.join(sys.argv[1], pack(sys.argv[1])))
