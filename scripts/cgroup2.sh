#!/usr/bin/env bash
# Runs a command in a small virtual machine whose control groups are version 2 alone: in a group of its own, like a
# service to which groups were delegated. It sees the files of this machine, and what it writes is gone with it.
#   scripts/cgroup2.sh COMMAND…
# As root; GROUP_OWNER=UID runs it as that user, to whom the group was given.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/.tools/cgroup2
modules=(drivers/virtio/virtio{,_ring,_pci_legacy_dev,_pci_modern_dev,_pci} fs/netfs/netfs fs/fscache/fscache
  net/9p/{9pnet,9pnet_virtio} fs/9p/9p fs/overlayfs/overlay)

fetch() { # a kernel and a shell of Debian, unpacked and not installed
  local kernel
  kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -1)
  echo "· fetching $kernel and busybox-static into ${tools#"$PWD/"} (once; 70 MB)"
  rm -rf "$tools"
  mkdir -p "$tools/initrd"/{bin,dev,host,new,proc,rw,sys}
  (cd "$tools" && apt-get download -qq "$kernel" busybox-static 2>/dev/null)
  for package in "$tools"/*.deb; do dpkg-deb -x "$package" "$tools/unpacked"; done
  cp "$tools"/unpacked/bin/busybox "$tools/initrd/bin/"
  for module in "${modules[@]}"; do cp "$tools"/unpacked/lib/modules/*/kernel/"$module.ko" "$tools/initrd/"; done
  rm -rf "$tools"/*.deb
  mv "$tools"/unpacked/boot/vmlinuz-* "$tools/kernel" # last, as it says that all is there
  rm -rf "$tools/unpacked"
}

first() { # what the machine does up to where the files of this one are its own
  cat <<BEGIN
#!/bin/busybox sh
b=/bin/busybox
\$b mount -t proc proc /proc
\$b mount -t sysfs sysfs /sys
\$b mount -t devtmpfs dev /dev
for module in $(printf '%s ' "${modules[@]##*/}"); do \$b insmod /\$module.ko; done
\$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 host /host
\$b mount -t tmpfs -o size=75% tmpfs /rw
\$b mkdir /rw/upper /rw/work
\$b mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work root /new
for each in proc sys dev; do \$b mount --move /\$each /new/\$each; done
exec \$b switch_root /new /bin/sh -c "\$(\$b cat /then)"
BEGIN
}

then_run() { # then_run COMMAND… ; and end the machine
  local group=/sys/fs/cgroup/service as=""
  cat <<BEGIN
mkdir -p /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo "+memory +pids +cpu" > /sys/fs/cgroup/cgroup.subtree_control
mkdir $group
export TMPDIR=/dev/shm HOME=/root PATH=$(printf %q "$PATH")
BEGIN
  if [ -n "${GROUP_OWNER:-}" ]; then
    echo "chown $GROUP_OWNER $group $group/cgroup.procs $group/cgroup.subtree_control"
    as="setpriv --reuid=$GROUP_OWNER --regid=$GROUP_OWNER --clear-groups -- "
  fi
  printf '(echo 0 > %s/cgroup.procs; cd %q; exec %s%s)\n' $group "$PWD" "$as" "$(printf '%q ' "$@")"
  printf 'echo "cgroup2: ended with $?"\necho o > /proc/sysrq-trigger\nsleep 60\n'
}

command -v qemu-system-x86_64 >/dev/null ||
  { echo "qemu is missing: apt-get install --no-install-recommends qemu-system-x86" >&2; exit 1; }
[ -f "$tools/kernel" ] || fetch
work=$(mktemp -d "$tools/run.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp -a "$tools/initrd" "$work/"
first >"$work/initrd/init"
then_run "$@" >"$work/initrd/then"
chmod +x "$work/initrd/init"
(cd "$work/initrd" && find . | bin/busybox cpio -o -H newc 2>/dev/null) >"$work/initrd.img"
# Emulated, since a machine that is virtual itself often has no KVM, or one that is not whole.
qemu-system-x86_64 -machine accel=tcg -cpu max -smp 2 -m 2048 -nodefaults -no-user-config -display none -serial stdio \
  -no-reboot -kernel "$tools/kernel" -initrd "$work/initrd.img" -append "console=ttyS0 quiet panic=-1" \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap </dev/null | tee "$work/said"
grep -q '^cgroup2: ended with 0' "$work/said"
