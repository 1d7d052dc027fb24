# Suite passthrough: namespaces of NVMe drives (emulated by QEMU) exported by io_uring passthrough to a Linux host.
# shellcheck shell=bash disable=SC2034,SC2054,SC2119,SC2120,SC2153,SC2154,SC2317,SC2329 # variables and functions of lib.sh, words of QEMU
SUITE_MODULES="nvme nvme-tcp ext4"

# Images that tests/vm/run makes for the guest, NAME SIZE; and the drives on them.
SUITE_DISKS=("plain 128M" "large 128M" "pi 64M" "zoned 64M")
images=${run:-} # where they are, on the machine
SUITE_QEMU=(
    -drive "if=none,id=plain,format=raw,file=$images/plain.img,discard=unmap,detect-zeroes=unmap"
    -drive "if=none,id=large,format=raw,file=$images/large.img,discard=unmap"
    -drive "if=none,id=pi,format=raw,file=$images/pi.img"
    -drive "if=none,id=zoned,format=raw,file=$images/zoned.img"
    -device nvme,id=nvme0,serial=PLAIN
    -device nvme-ns,drive=plain,bus=nvme0,nsid=1,logical_block_size=512,physical_block_size=512
    -device nvme,id=nvme1,serial=LARGE,mdts=5
    -device nvme-ns,drive=large,bus=nvme1,nsid=3,logical_block_size=4096,physical_block_size=4096
    -device nvme,id=nvme2,serial=PI
    -device nvme-ns,drive=pi,bus=nvme2,nsid=1,logical_block_size=512,physical_block_size=512,ms=8,pi=1
    -device nvme,id=nvme3,serial=ZONED
    -device nvme-ns,drive=zoned,bus=nvme3,nsid=1,zoned=true,zoned.zone_size=4M,logical_block_size=4096,physical_block_size=4096
)

one=nqn.2026-12.io.weft:one

# drive SERIAL NSID: leaves the character device in $node, the block device in $disk and the controller's name in $local.
find_drive() {
    local path name
    for path in /sys/class/nvme/nvme*; do
        if [ ! -e "$path/serial" ] || [[ "$(<"$path/serial")" != "$1"*( ) ]] || [ "$(<"$path/transport")" != pcie ]; then continue; fi
        local=${path##*/}
        for name in "$path"/nvme*n*; do
            if [ ! -e "$name/nsid" ] || [ "$(<"$name/nsid")" != "$2" ]; then continue; fi
            disk=/dev/${name##*/}
            # Its character device ends with the same number; the first one may differ.
            for node in "$path"/ng*n"${name##*n}"; do
                node=/dev/${node##*/}
                [ -c "$node" ] && return 0
            done
        done
    done
    return 1
}
drive() { soon 30 find_drive "$1" "$2" || fail "no drive $1 with namespace $2"; }

export_drive() { # [further lines of the namespace]: $node, connected
    weft_describe <<<"subsystem $one any"
    printf '[[subsystem.namespace]]\nnsid = 1\nbackend = "passthrough"\ndevice = "%s"\n%s\n' "$node" "${1:-}" >>"$weft_config"
    target_again
    connect "$one"
    device "$ctrl" 1
}

drive_commands() { http /metrics | awk '/^weft_drive_commands_total/ { sum += $NF } END { print sum + 0 }'; }

refuses() { # WORDS: weft must refuse to start with $weft_config and say these words
    local said
    if said=$(LD_LIBRARY_PATH=/run/lib timeout 20 /run/bin/weft serve --config "$weft_config" 2>&1); then
        fail "weft started: $said"
    fi
    echo "$said"
    grep -q -- "$1" <<<"$said" || fail "weft does not say '$1' but: $said"
}
describe_drive() { # DEVICE
    weft_describe <<<"subsystem $one any"
    printf '[[subsystem.namespace]]\nnsid = 1\nbackend = "passthrough"\ndevice = "%s"\n' "$1" >>"$weft_config"
}

add_case drives 120 weft short
passthrough_drives() { # weft drives: what there is, and what weft would make of it
    drive PLAIN 1
    LD_LIBRARY_PATH=/run/lib /run/bin/weft drives | tee /run/said
    grep -qE "^$node +1 .*PLAIN.*512 B" /run/said || fail "the plain drive is not listed"
    grep -A1 -E "^$node " /run/said | grep -q 'can be exported' || fail "the plain drive is said to be no good"
    drive PI 1
    grep -A1 -E "^$node " /run/said | grep -q metadata || fail "nothing is said of metadata"
    drive ZONED 1
    grep -A1 -E "^$node " /run/said | grep -q zoned || fail "nothing is said of zones"
}

add_case refusals 240 weft
passthrough_refusals() { # a wrong name, a drive in use, and what cannot be exported: one clear word each
    drive PI 1
    describe_drive "$node"
    refuses metadata
    drive ZONED 1
    describe_drive "$node"
    refuses zoned
    describe_drive /dev/ng99n1
    refuses 'weft drives'
    drive PLAIN 1
    describe_drive "$disk"
    refuses "$node"
    describe_drive "/dev/$local"
    refuses "one of its namespaces"
    mkfs.ext4 -q -F "$disk"
    mkdir /mnt/fs
    mount "$disk" /mnt/fs
    describe_drive "$node"
    refuses "mounted on /mnt/fs"
    LD_LIBRARY_PATH=/run/lib /run/bin/weft drives | grep -A1 -E "^$node " | grep 'mounted on /mnt/fs' || fail "weft drives does not see the mount"
    umount /mnt/fs
}

add_case mkfs-copy 240 weft short
passthrough_mkfs_copy() { # a file system on a drive through the fabric, seen to be passthrough and not block I/O
    drive PLAIN 1
    export_drive
    local before
    local -a stat
    before=$(drive_commands)
    mkfs.ext4 -q -F "$dev"
    mkdir /mnt/fs
    mount "$dev" /mnt/fs
    cp -a /etc /mnt/fs/
    umount /mnt/fs
    echo 3 >/proc/sys/vm/drop_caches
    mount "$dev" /mnt/fs
    diff -r --no-dereference /etc /mnt/fs/etc
    umount /mnt/fs
    [ "$(drive_commands)" -gt $((before + 100)) ] || fail "$(drive_commands) commands went to the drive, $before before"
    disconnect "$ctrl"
    e2fsck -fn "$disk" || fail "the drive does not hold the file system"
}

add_case fio 300 weft
passthrough_fio() { # from a block to beyond what the drive takes in one command (mdts=5: 128 KiB)
    drive LARGE 3
    export_drive
    [ "$(blockdev --getss "$dev")" = 4096 ] || fail "blocks of $(blockdev --getss "$dev") bytes"
    verify "$dev" 4k 2m
    verify "$dev" 128k 4m --offset=16m
    verify "$dev" 1m 8m --offset=32m --iodepth=4
    disconnect "$ctrl"
    drive PLAIN 1
    target_stop
    export_drive
    verify "$dev" 4k 2m --bsrange=512-64k --bs_unaligned=0
    verify "$dev" 1m 4m --offset=32m --iodepth=4 --hdr-digest 2>/dev/null || verify "$dev" 1m 4m --offset=32m --iodepth=4
}

# on DEVICE: the same commands on a device; what they answer, one line each.
on() {
    local device=$1 said status
    answer() {
        status=0
        said=$("$@" 2>&1) || status=$?
        echo "$2: $status $(grep -oiE 'NVMe status: [^:(]*' <<<"$said" | head -1)"
    }
    answer nvme write "$device" -s 0 -c 127 -z 65536 -d /run/data
    answer nvme compare "$device" -s 0 -c 127 -z 65536 -d /run/data
    answer nvme compare "$device" -s 1 -c 126 -z 65024 -d /run/data
    answer nvme write-zeroes "$device" -s 8 -c 7
    answer nvme dsm "$device" --ad --slbs=64,96 --blocks=8,8
    answer nvme verify "$device" -s 0 -c 127
    answer nvme copy "$device" --sdlba=1024 --slbs=0,64 --blocks=63,63 --format=0
    answer nvme flush "$device" -n 1
    answer nvme read "$device" -s $((1 << 40)) -c 7 -z 4096 -d /run/data-read
    answer nvme io-passthru "$device" --opcode=0x7d --namespace-id=1
}

add_case same-as-the-drive 300 weft
passthrough_same_as_the_drive() { # commands on the exported namespace answer, and do, what they do on the drive itself
    head -c 65536 /dev/urandom >/run/data
    drive PLAIN 1
    blkdiscard -z "$disk"
    on "$disk" >/run/said-drive
    dd if="$disk" bs=1M count=2 iflag=direct of=/run/data-drive
    blkdiscard -z "$disk"
    export_drive
    on "$dev" >/run/said-weft
    dd if="$dev" bs=1M count=2 iflag=direct of=/run/data-weft
    diff /run/said-drive /run/said-weft || fail "other answers than the drive's"
    cmp /run/data-drive /run/data-weft || fail "other data than the drive's"
    local field
    nvme id-ns "$disk" -o json >/run/id-drive
    nvme id-ns "$dev" -o json >/run/id-weft
    for field in .nsze .ncap '.lbafs[0].ds' .flbas; do
        [ "$(jq "$field" /run/id-drive)" = "$(jq "$field" /run/id-weft)" ] || fail "id-ns $field differs"
    done
}

add_case removal 300 weft
passthrough_removal() { # the drive goes away under I/O: clean errors, other namespaces do not notice; it comes back and serves
    drive PLAIN 1
    local address=127.0.0.1 slot job first=$node
    slot=$(readlink -f "/sys/class/nvme/$local/device")
    weft_describe <<<"subsystem $one any
        namespace 2 memory 64"
    printf '[[subsystem.namespace]]\nnsid = 1\nbackend = "passthrough"\ndevice = "%s"\n' "$node" >>"$weft_config"
    target_again
    connect "$one"
    device "$ctrl" 2
    local other=$dev
    device "$ctrl" 1
    verify "$other" 4k 2m --rate_iops=200 &
    job=$!
    fio --name=load --thread --filename="$dev" --direct=1 --ioengine=io_uring --rw=randrw --bs=4k --iodepth=16 --size=32m \
        --time_based --runtime=30 --continue_on_error=all >/run/load 2>&1 &
    soon 40 has_written "$dev" 50 || fail "no I/O"
    echo 1 >"$slot/remove"
    nap 3
    kill -0 "$weft_pid" || fail "weft is gone"
    wait "$job" || fail "the other namespace noticed"
    is_live "$ctrl" || fail "$ctrl is $(state "$ctrl")"
    echo 1 >/sys/bus/pci/rescan
    soon 60 find_drive PLAIN 1 || fail "the drive did not come back"
    kill %% 2>/dev/null || true
    again() { dd if="$dev" of=/dev/null bs=4k count=1 iflag=direct; }
    soon 60 again || fail "the namespace does not serve again ($first, now $node)"
    verify "$dev" 4k 1m
}
