"""In a sandbox: changes a tree at random, or describes it.
    tree.py change SEED COUNT [apart]     tree.py describe
With "apart" no file gets a second name.
What is done depends on the seed and on what is there, so that equal trees stay equal."""
import hashlib
import os
import random
import stat
import sys

TOPS = ["/data", "/usr/share/doc", "/usr/share/zoneinfo/Europe", "/workspace"]
DATA = "/data"
# Files that were made here, and may get further names: for a template's file, overlayfs does not promise that two names of one
# look like it.
OWN = "own-"


def below(top):
    """Everything under it, by name."""
    for folder, dirs, files in os.walk(top):
        dirs.sort()
        for name in sorted(dirs + files):
            yield os.path.join(folder, name)


def files_of(top, at_most=400):
    return [path for path in below(top) if stat.S_ISREG(os.lstat(path).st_mode)][:at_most]


def folders_of(top):
    return [top] + [path for path in below(top) if stat.S_ISDIR(os.lstat(path).st_mode)]


def write(rng, path):
    with open(path, "wb") as file:
        file.write(rng.randbytes(rng.choice([0, 1, 4095, 4096, 70000])))


def sparse(rng, path):
    with open(path, "wb") as file:
        for _ in range(3):
            file.seek(rng.randrange(1 << 24))
            file.write(rng.randbytes(5000))


def attributes(rng, path):
    os.setxattr(path, b"user.test", rng.randbytes(rng.choice([1, 100])))
    os.chmod(path, rng.choice([0o600, 0o644, 0o755, 0o4755, 0o1777]))
    os.chown(path, rng.randrange(70), rng.randrange(70))


def patch(rng, path):
    with open(path, "r+b") as file:
        file.seek(rng.randrange(8192))
        file.write(rng.randbytes(100))


def change(seed, count, apart):
    rng = random.Random(seed)
    os.makedirs(DATA, exist_ok=True)
    for number in range(count):
        top = rng.choice(TOPS)
        folder = rng.choice(folders_of(top))
        files = files_of(top)
        some = rng.choice(files) if files else None
        own = some is not None and os.path.basename(some).startswith(OWN)
        name = os.path.join(folder, f"n{seed}-{number}")
        what = rng.randrange(11)
        if what == 0 or some is None or (what == 5 and (apart or not own)):
            write(rng, os.path.join(folder, f"{OWN}{seed}-{number}"))
        elif what == 1:
            sparse(rng, name)
        elif what == 2:
            os.mkdir(name)
        elif what == 3:
            os.rename(some, os.path.join(folder, f"{OWN if own else 'n'}{seed}-{number}"))
        elif what == 4:
            os.unlink(some)
        elif what == 5:
            os.link(some, os.path.join(folder, f"{OWN}{seed}-{number}"))
        elif what == 6:
            os.symlink(some, name)
        elif what == 7:
            attributes(rng, some)
        elif what == 8:
            patch(rng, some)
        elif what == 9:
            with open(some, "r+b") as file:
                file.truncate(rng.randrange(10000))
        else:
            # A folder of the template's, removed and made anew: an opaque one.
            victims = [path for path in folders_of("/usr/share/doc")[1:] if len(os.listdir(path)) < 6]
            if victims:
                victim = rng.choice(victims)
                os.system(f"rm -rf '{victim}'")
                os.mkdir(victim)
                write(rng, os.path.join(victim, "fresh"))


def describe():
    links = {}
    for top in TOPS:
        for path in below(top):
            st = os.lstat(path)
            line = [path, oct(st.st_mode), st.st_uid, st.st_gid]
            if stat.S_ISLNK(st.st_mode):
                line.append(os.readlink(path))
            else:
                line += [(name, os.getxattr(path, name).hex()) for name in sorted(os.listxattr(path))]
            if stat.S_ISREG(st.st_mode):
                with open(path, "rb") as file:
                    line += [st.st_size, hashlib.sha256(file.read()).hexdigest()]
                if st.st_nlink > 1 and os.path.basename(path).startswith(OWN):
                    line.append(("same as", links.setdefault((st.st_dev, st.st_ino), path)))
            print(*line)


if sys.argv[1] == "change":
    change(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["apart"])
else:
    describe()
