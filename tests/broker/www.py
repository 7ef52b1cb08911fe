"""What an origin serves to tools that know nothing of the broker: a git repository, an index for pip, a registry for npm, a mirror
for apt, each with one package, index-test-pkg."""
import base64
import gzip
import hashlib
import json
import os
import tarfile
import zipfile

from rig import run

BASE = "https://index.example.org/static"


class Www:
    def __init__(self, world):
        self.folder = world.folder + "/www"
        self.work = world.folder + "/www-work"
        os.mkdir(self.folder)
        os.mkdir(self.work)
        world.origin.static = self.folder

    def write(self, path, data):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode())
        return path

    def git(self, *arguments):
        return run("git", "-C", self.folder + "/repo.git", *arguments)

    def repository(self, size=3000000):
        """/git/repo.git, with a file `big`; it takes pushes."""
        work = self.work + "/repo"
        run("git", "init", "-q", "--bare", self.folder + "/repo.git")
        self.git("config", "http.receivepack", "true")
        run("git", "init", "-q", work)
        with open(work + "/big", "wb") as file:
            file.write(os.urandom(size))
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        run("git", "-C", work, "add", "big")
        run("git", "-C", work, *identity, "commit", "-qm", "one")
        run("git", "-C", work, "push", "-q", self.folder + "/repo.git", "HEAD:refs/heads/main")
        self.git("symbolic-ref", "HEAD", "refs/heads/main")

    def pip_index(self):
        """BASE/simple/"""
        name = "index_test_pkg-1.0-py3-none-any.whl"
        path = self.write("simple/index-test-pkg/" + name, b"")
        with zipfile.ZipFile(path, "w") as wheel:
            files = {"index_test_pkg.py": "ANSWER = 42\n",
                     "index_test_pkg-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: index-test-pkg\nVersion: 1.0\n",
                     "index_test_pkg-1.0.dist-info/WHEEL":
                         "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
            record = ""
            for file, text in files.items():
                wheel.writestr(file, text)
                digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
                record += f"{file},sha256={digest},{len(text)}\n"
            wheel.writestr("index_test_pkg-1.0.dist-info/RECORD", record + "index_test_pkg-1.0.dist-info/RECORD,,\n")
        self.write("simple/index-test-pkg/index.html", f'<!DOCTYPE html><a href="{name}">{name}</a>\n')

    def npm_registry(self):
        """BASE/npm/"""
        folder = self.work + "/npm-package"
        os.makedirs(folder + "/package")
        with open(folder + "/package/package.json", "w", encoding="ascii") as file:
            json.dump({"name": "index-test-pkg", "version": "1.0.0", "main": "index.js"}, file)
        with open(folder + "/package/index.js", "w", encoding="ascii") as file:
            file.write("module.exports = 42;\n")
        tar = self.write("npm/index-test-pkg-1.0.0.tgz", b"")
        with tarfile.open(tar, "w:gz") as archive:
            archive.add(folder + "/package", "package")
        with open(tar, "rb") as file:
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(file.read()).digest()).decode()
        dist = {"tarball": BASE + "/npm/index-test-pkg-1.0.0.tgz", "integrity": integrity}
        self.write("npm/index-test-pkg", json.dumps({
            "name": "index-test-pkg", "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": {"name": "index-test-pkg", "version": "1.0.0", "dist": dist}}}))

    def apt_mirror(self):
        """BASE/apt/"""
        control = "Package: index-test-pkg\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.org>\nDescription: test\n"
        build = self.work + "/deb"
        os.makedirs(build + "/DEBIAN")
        with open(build + "/DEBIAN/control", "w", encoding="ascii") as file:
            file.write(control)
        path = self.write("apt/pool/index-test-pkg.deb", b"")
        run("dpkg-deb", "--build", "--root-owner-group", build, path)
        with open(path, "rb") as file:
            deb = file.read()
        packages = (control + f"Filename: pool/index-test-pkg.deb\nSize: {len(deb)}\n"
                    f"SHA256: {hashlib.sha256(deb).hexdigest()}\n\n").encode()
        self.write("apt/Packages", packages)
        self.write("apt/Packages.gz", gzip.compress(packages))
