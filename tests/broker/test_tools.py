#!/usr/bin/python3
"""Tools that know nothing of the broker: git, pip, npm and apt, through the proxy variables and, in a transparent sandbox, without
them.  Prints TAP; a tool that is not installed is skipped."""
import os
import shutil
import subprocess
import sys

import rig
from rig import need, same
from www import BASE, Www

rig.enter()
WORLD = rig.World()
A, T = WORLD.guest(), WORLD.guest(transparent=True)
BROKER = WORLD.broker("api.example.org = Basic c2VjcmV0\n")
for GUEST in (A, T):
    BROKER.add(GUEST, ["index.example.org", "api.example.org"])
WWW = Www(WORLD)
CA = WORLD.folder + "/ca.pem"
PROXY = {name: A.proxy() for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
NONE = {"http_proxy": "", "https_proxy": "", "HTTP_PROXY": "", "HTTPS_PROXY": ""}
BOTH = ((A, PROXY, "proxy"), (T, NONE, "transparent"))


def runs(guest, env, script, what):
    code, out = guest.script(script, timeout=120, env=env)
    need(code == 0, f"{what}: {out[-2000:]}")
    return out


def git_clones_and_pushes():
    WWW.repository()
    for guest, env, how in BOTH:
        copy = WORLD.folder + "/clone-" + how
        # More than http.postBuffer: git sends it chunked.
        runs(guest, env, f"export HOME=/nowhere GIT_SSL_CAINFO={CA}; git clone -q https://index.example.org/git/repo.git {copy} && "
             f"cd {copy} && head -c 4000000 /dev/urandom > more && git add more && git -c user.name=t -c user.email=t@x commit -qm {how} && "
             f"git push -q origin HEAD:refs/heads/{how}", how)
        same(WWW.git("rev-parse", how), rig.run("git", "-C", copy, "rev-parse", "HEAD"), how)
    # By the relay: http in the guest, https outside, and the credential put in.
    runs(A, PROXY, f"export HOME=/nowhere; git clone -q http://api.example.org/git/repo.git {WORLD.folder}/relayed", "relay")
    seen = [s for s in WORLD.origin.seen if s.target.startswith("/git/") and dict(s.fields)["Host"] == "api.example.org"]
    need(seen and all(dict(s.fields).get("Authorization") == "Basic c2VjcmV0" for s in seen), f"{seen}")
    code, out = A.script(f"GIT_SSL_CAINFO={CA} HOME=/nowhere git clone -q https://denied.example.com/x.git /nowhere/x", env=PROXY)
    need(code != 0 and "403" in out, out)


def pip_installs():
    WWW.pip_index()
    for guest, env, how in BOTH:
        target = f"{WORLD.folder}/pip-{how}"
        # requests would take an authority from the variables before that of --cert.
        runs(guest, {**env, "HOME": WORLD.folder, "PIP_CONFIG_FILE": "/dev/null"},
             "env -u REQUESTS_CA_BUNDLE -u CURL_CA_BUNDLE -u SSL_CERT_FILE "
             f"{sys.executable} -m pip install -q --disable-pip-version-check --no-cache-dir --cert {CA} "
             f"--index-url {BASE}/simple/ --target {target} index-test-pkg", how)
        need(os.path.exists(target + "/index_test_pkg.py"), f"{how}: nothing was installed")


def npm_installs():
    WWW.npm_registry()
    for guest, env, how in BOTH:
        target = f"{WORLD.folder}/npm-{how}"
        os.mkdir(target)
        runs(guest, {**env, "HOME": target}, f"cd {target} && npm install --silent --no-audit --no-fund --cafile {CA} "
             f"--registry {BASE}/npm/ --cache {target}/cache index-test-pkg", how)
        need(os.path.exists(target + "/node_modules/index-test-pkg/index.js"), f"{how}: nothing was installed")


def apt_updates_and_downloads():
    WWW.apt_mirror()
    for guest, env, how in BOTH:
        root = f"{WORLD.folder}/apt-{how}"
        for part in ("lists/partial", "cache/archives/partial", "etc", "out"):
            os.makedirs(f"{root}/{part}")
        with open(root + "/sources.list", "w", encoding="ascii") as file:
            file.write(f"deb [trusted=yes] {BASE}/apt/ ./\n")
        options = (f"-o Dir::State::lists={root}/lists -o Dir::Cache={root}/cache -o Dir::Etc::sourcelist={root}/sources.list "
                   f"-o Dir::Etc::sourceparts=- -o Acquire::https::CaInfo={CA} -o APT::Sandbox::User=root -o Acquire::Retries=0")
        runs(guest, env, f"cd {root}/out && apt-get -q {options} update && apt-get -q {options} download index-test-pkg", how)
        need(os.listdir(root + "/out"), f"{how}: nothing was downloaded")


def skipped(tool, case):
    def skip():
        print(f"# {tool} is not installed")
    if shutil.which(tool):
        return case
    skip.__name__ = case.__name__ + " # SKIP"
    return skip


CASES = [skipped("git", git_clones_and_pushes), pip_installs, skipped("npm", npm_installs),
         skipped("apt-get", apt_updates_and_downloads)]
if subprocess.run([sys.executable, "-m", "pip", "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                  check=False).returncode != 0:
    CASES[1] = skipped("no-pip", pip_installs)

try:
    FAILED = rig.run_cases(CASES)
finally:
    BAD = WORLD.end()
sys.exit(1 if FAILED or BAD else 0)
