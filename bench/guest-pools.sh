#!/bin/bash
# Runs inside the machine with OpenZFS: two pools with the same tree, and one with a directory of very
# many entries. Arguments: how many entries, and how many seconds to spend on them at most.
set -euo pipefail
entries=$1 seconds=$2
n=0
for disk in vda vdb vdc vdd vde vdf; do
    # Under such a name a disk is taken whole, not partitioned.
    mknod "/dev/ram$n" b $(tr : ' ' <"/sys/block/$disk/dev")
    n=$((n + 1))
done
mkdir -p /mnt/tree
mount -o ro /dev/vdg /mnt/tree
zpool create -o ashift=12 -O compression=lz4 -O atime=off -m /bmirror bmirror mirror /dev/ram0 /dev/ram1
zpool create -o ashift=12 -O compression=lz4 -O atime=off -m /braidz1 braidz1 raidz1 /dev/ram2 /dev/ram3 /dev/ram4
zpool create -o ashift=12 -O compression=lz4 -O atime=off -m /bmany bmany /dev/ram5
for pool in bmirror braidz1; do
    SECONDS=0
    cp -a /mnt/tree/small /mnt/tree/large "/$pool/"
    zpool sync "$pool"
    echo "$pool: tree copied in $SECONDS s"
done
mkdir /bmany/many
python3 - "$entries" "$seconds" <<'PYTHON'
import os, sys, time
entries, seconds = int(sys.argv[1]), int(sys.argv[2])
begun = time.monotonic()
made = 0
os.chdir('/bmany/many')
while made < entries and (made % 1000 or time.monotonic() - begun < seconds):
    os.close(os.open('entry-%07d' % made, os.O_CREAT | os.O_WRONLY, 0o644))
    made += 1
    if made % 50000 == 0:
        print('bmany:', made, 'entries after', int(time.monotonic() - begun), 's', flush=True)
print('bmany:', made, 'entries')
PYTHON
for pool in bmirror braidz1 bmany; do
    zpool list -Hp "$pool"
    zpool export "$pool"
done
