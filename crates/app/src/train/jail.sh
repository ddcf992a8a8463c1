# Makes a system that is read-only and has no network, of the folders that programs need, and runs a command in it. Runs inside namespaces
# of its own, as what is root there and no one outside. Writes `ready` before the command begins.
set -eu
dir=$1 size=$2 as=$3 cpu=$4 nproc=$5 clock=$6 shown=$7
shift 7
new=$dir/root
mount -t tmpfs -o size=4m,mode=755 tmpfs "$new"
show() {
    if [ -L "$1" ]; then ln -s "$(readlink "$1")" "$new$1"
    elif [ -d "$1" ]; then mkdir -p "$new$1"; mount --rbind "$1" "$new$1"
    fi
}
for at in /usr /bin /sbin /lib /lib32 /lib64 /libx32 /etc; do show $at; done
while [ "$shown" -gt 0 ]; do show "$1"; shift; shown=$((shown - 1)); done
mkdir "$new/dev" "$new/proc" "$new/work" "$new/old"
for at in null zero random urandom; do : > "$new/dev/$at"; mount --bind "/dev/$at" "$new/dev/$at"; done
mount -t proc proc "$new/proc" 2> /dev/null || true
mount -t tmpfs -o "size=$size,mode=755" tmpfs "$new/work"
cp -r "$dir/files/." "$new/work/"
[ -e "$new/tmp" ] || ln -s work "$new/tmp"
while read -r _ _ _ _ at flags _; do
    case $at in
    "$new"/work | "$new"/proc) ;;
    "$new" | "$new"/*) mount -o "remount,bind,ro${flags#r[ow]}" "$at" ;;
    esac
done < /proc/self/mountinfo
echo 0 2> /dev/null > /proc/sys/user/max_user_namespaces || true
cd "$new"
pivot_root . old
exec chroot . /bin/sh -uc '
    umount -l /old && cd /work || exit 1
    as=$1 cpu=$2 nproc=$3 size=$4 clock=$5
    shift 5
    command -v timeout > /dev/null || { echo "there is no timeout (coreutils)" >&2; exit 1; }
    echo ready
    timeout -s KILL "$clock" prlimit --core=0 --nofile=256 "--fsize=$size" "--as=$as" "--cpu=$cpu" "--nproc=$nproc" \
        setpriv --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all \
        env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/work TMPDIR=/work LANG=C.UTF-8 "$@"
    exit $?
' sh "$as" "$cpu" "$nproc" "$size" "$clock" "$@"
