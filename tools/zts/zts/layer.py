"""The files that each container has above the machine's own: the suite, shims, a user."""
import os
import re
import shutil
import subprocess
import sys

from .suite import SUITE

USER_ID = 61234

# Changes of the suite's files, in the layer only: tunables and kernel statistics go to our shims.
PATCHES = [
    ("include/libtest.shlib", r'echo "\$value" >"\$zfs_tunables/\$tunable"', r'zts-tunable set "$tunable" "$value"'),
    ("include/libtest.shlib", r"cat \$zfs_tunables/\$tunable", r'zts-tunable get "$tunable" "$module"'),
    (
        "include/kstat.shlib",
        r"(function _kstat_linux\n\{\n(?:.*\n){4})",
        r'\1\n\tzts-kstat "$scope" "$obj" "$stat" "$want_group" || {\n'
        r'\t    print -u2 "kstat: unsupported: $scope $obj $stat"; exit 1; }\n\treturn\n',
    ),
    ("include/kstat.shlib", r"(function _resolve_dsname_linux\n\{\n)", r'\1\tzts-kstat resolve "$1" "$2"\n\treturn\n'),
]


def copy_merged(source, target):
    """Copies a tree of unpacked packages; `/bin`, `/lib` and `/sbin` are links into `/usr` on the machine."""
    for name in sorted(os.listdir(source)):
        to = f"{target}/usr/{name}" if name in ("bin", "lib", "sbin", "lib64") else f"{target}/{name}"
        os.makedirs(to, exist_ok=True)
        subprocess.run(["cp", "-a", f"{source}/{name}/.", to], check=True)


def build(layer, packages, here):
    """Builds the layer in an empty folder from the unpacked packages and the folder of this tool."""
    copy_merged(packages, layer)
    for folder in ("zts/tunables", "etc/sudoers.d", "etc/zfs", "home/zts"):
        os.makedirs(f"{layer}/{folder}", exist_ok=True)
    shutil.copytree(f"{here}/shims", f"{layer}/zts/shims")
    shutil.copy(f"{here}/tunable-defaults.tsv", f"{layer}/zts/")
    write(f"{layer}/zts/unsupported", "", 0o666)
    os.chmod(f"{layer}/zts/tunables", 0o777)
    add_user(layer)
    write(f"{layer}/etc/hosts", "127.0.0.1 localhost ztshost\n::1 localhost\n", 0o644)
    patch(layer)


def write(path, text, mode):
    with open(path, "w") as file:
        file.write(text)
    os.chmod(path, mode)


def add_user(layer):
    """An ordinary user who may use sudo, as the suite requires."""
    lines = {
        "passwd": f"zts:x:{USER_ID}:{USER_ID}::/home/zts:/bin/sh",
        "group": f"zts:x:{USER_ID}:",
        "shadow": "zts:*:19000:0:99999:7:::",
        "gshadow": "zts:!::",
    }
    for name, line in lines.items():
        try:
            with open(f"/etc/{name}") as file:
                text = file.read()
        except FileNotFoundError:
            text = ""
        write(f"{layer}/etc/{name}", text.rstrip("\n") + "\n" + line + "\n", 0o640 if "shadow" in name else 0o644)
    os.chown(f"{layer}/home/zts", USER_ID, USER_ID)
    rules = ["Defaults !secure_path", "Defaults !requiretty", "root ALL=(ALL:ALL) NOPASSWD: ALL", "zts ALL=(ALL:ALL) NOPASSWD: ALL"]
    write(f"{layer}/etc/sudoers.d/zts", "\n".join(rules) + "\n", 0o440)


def patch(layer):
    for name in sorted({patch[0] for patch in PATCHES}):
        path = f"{layer}{SUITE}/{name}"
        with open(path) as file:
            text = file.read()
        for of, pattern, replacement in PATCHES:
            if of == name:
                text, count = re.subn(pattern, replacement, text)
                if count != 1:
                    sys.exit(f"zts: {name} has {count} places like {pattern!r} instead of one: another version of the suite?")
        write(path, text, 0o755)
