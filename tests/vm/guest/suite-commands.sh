# Suite commands: what a Linux host asks of a controller and its namespaces by nvme-cli, beyond mounting them.
# shellcheck shell=bash disable=SC2034,SC2153,SC2154,SC2317,SC2329 # variables and functions of lib.sh, functions called by name
SUITE_MODULES="nvme-tcp ext4 loop sd_mod"

one=nqn.2026-12.io.weft:one

one_of() { # BACKEND [MIB] [PATH|-] [LBA-SIZE]: a target with one namespace, a host that is connected to it
    target_start <<<"subsystem $one any
        namespace 1 $1 ${2:-64} ${3:--} ${4:-}"
    connect "$one"
    device "$ctrl" 1
}

data() { head -c "$1" /dev/urandom >"/run/data${2:-}"; }

refused() { # COMMAND...: it must fail, and what it says stays in /run/said
    ! "$@" >/run/said 2>&1 || fail "not refused: $*: $(head -1 /run/said)"
    cat /run/said
}

lived() { # the controller saw no error recovery
    is_live "$ctrl" || fail "$ctrl is $(state "$ctrl")"
    ! dmesg_of_case | grep -E "$ctrl: (starting error recovery|.*timeout)" || fail "the controller was lost"
}
dmesg_of_case() { dmesg | awk '/weft-vm: start/ { text = "" } { text = text $0 "\n" } END { printf "%s", text }'; }

# -- commands on a namespace --------------------------------------------------------------------------------------------

# io_commands: every command on blocks of 512 bytes; what was to change did, what was not did not.
io_commands() {
    data 65536
    nvme write "$dev" -s 0 -c 127 -z 65536 -d /run/data
    nvme read "$dev" -s 0 -c 127 -z 65536 -d /run/data-read
    cmp /run/data /run/data-read || fail "read does not give what write took"
    nvme compare "$dev" -s 0 -c 127 -z 65536 -d /run/data || fail "compare of equal data"
    data 65536 -other
    refused nvme compare "$dev" -s 0 -c 127 -z 65536 -d /run/data-other
    grep -qi compare /run/said || fail "compare of other data: $(head -1 /run/said)"
    nvme verify "$dev" -s 0 -c 127 || fail "verify"
    refused nvme verify "$dev" -s $((1 << 40)) -c 0
    nvme copy "$dev" --sdlba=1024 --slbs=0,64 --blocks=63,63 --format=0 || fail "copy"
    nvme compare "$dev" -s 1024 -c 127 -z 65536 -d /run/data || fail "copy copied something else"
    nvme write-zeroes "$dev" -s 8 -c 7 || fail "write-zeroes"
    nvme write-zeroes "$dev" -s 32 -c 7 --deac || fail "write-zeroes with deallocate"
    nvme dsm "$dev" --ad --slbs=64,96 --blocks=8,8 || fail "dsm"
    nvme flush "$dev" -n 1 || fail "flush"
    local at
    cp /run/data /run/data-want
    for at in 8 32 64 96; do dd if=/dev/zero of=/run/data-want bs=512 seek=$at count=8 conv=notrunc status=none; done
    nvme read "$dev" -s 0 -c 127 -z 65536 -d /run/data-read
    cmp /run/data-want /run/data-read || fail "zeroes are not exactly where they were asked for"
    refused nvme write-uncor "$dev" -s 0 -c 0
    refused nvme io-passthru "$dev" --opcode=0x7d --namespace-id=1 # Zone Append on a namespace without zones
    refused nvme dsm "$dev" --ad --slbs=$((1 << 40)) --blocks=8
    lived
}

add_case io-memory 240 weft
commands_io_memory() { one_of memory 64 - 512; io_commands; }

add_case io-file 240 weft
commands_io_file() { one_of file 64 /run/ns1.img 512; io_commands; }

add_case depths 240
commands_depths() { # queues barely deeper than what is in flight
    local depth
    one_of memory 64 - 512
    for depth in 1 2 3; do
        verify "$dev" 4k 512k --iodepth=$depth --bsrange=512-64k
    done
    lived
}

add_case write-protect 240 weft
commands_write_protect() { # feature 84h: the device turns read-only at the host, and back
    # The protection outlives restarts, so that it takes a place to be kept in.
    mkdir -p /run/ns-state
    weft_describe <<<"subsystem $one any
        namespace 1 memory 64 - 512"
    sed -i '1i state_dir = "/run/ns-state"' "$weft_config"
    target_again
    connect "$one"
    device "$ctrl" 1
    data 4096
    nvme write "$dev" -s 0 -c 7 -z 4096 -d /run/data
    local read_only
    read_only=/sys/block/${dev#/dev/}/ro
    nvme set-feature "$dev" -n 1 -f 0x84 --value=1
    soon 20 grep -q 1 "$read_only" || fail "the device is not read-only"
    refused nvme write "$dev" -s 0 -c 7 -z 4096 -d /run/data
    nvme compare "$dev" -s 0 -c 7 -z 4096 -d /run/data || fail "reading is forbidden too"
    nvme set-feature "$dev" -n 1 -f 0x84 --value=0
    soon 20 grep -q 0 "$read_only" || fail "the device stays read-only"
    nvme write "$dev" -s 0 -c 7 -z 4096 -d /run/data
    lived
}

# -- block devices ------------------------------------------------------------------------------------------------------

scsi_disk() { # [scsi_debug options]: leaves a disk of the kernel's own in $disk
    modprobe scsi_debug dev_size_mb=64 delay=0 "$@"
    local path
    find_disk() { for path in /sys/bus/pseudo/drivers/scsi_debug/adapter*/host*/target*/*/block/sd*; do disk=/dev/${path##*/}; [ -b "$disk" ] && return 0; done; return 1; }
    soon 20 find_disk || fail "no disk of scsi_debug"
}

block_backend() { # LOGICAL-BLOCK-SIZE
    scsi_disk lbpu=1 lbpws=1 sector_size="$1"
    one_of file 64 "$disk"
    [ "$(blockdev --getss "$dev")" = "$1" ] || fail "blocks of $(blockdev --getss "$dev") bytes, not $1"
    [ "$(blockdev --getsize64 "$dev")" = $((64 << 20)) ] || fail "the size is $(blockdev --getsize64 "$dev")"
    verify "$dev" 4k 1m
    verify "$dev" 256k 8m --offset=16m
    data 1m
    dd if=/run/data of="$dev" bs=1M oflag=direct
    cmp -n $((1 << 20)) /run/data "$disk" || fail "the disk does not hold what was written"
    if [ "$(<"/sys/block/${dev#/dev/}/queue/discard_max_bytes")" != 0 ]; then
        blkdiscard -o 65536 -l 65536 "$dev"
        cmp -n 65536 /run/data "$dev" || fail "discard touched what lies before"
    fi
    blkdiscard -z -o 131072 -l 65536 "$dev"
    cmp -n 65536 /dev/zero "$dev" 0 131072 || fail "write zeroes did not"
    lived
    disconnect "$ctrl"
    target_stop
    rmmod scsi_debug || true
}

add_case block-512 240 weft
commands_block_512() { block_backend 512; }

add_case block-4096 240 weft
commands_block_4096() { block_backend 4096; }

# -- a namespace that grows ---------------------------------------------------------------------------------------------

has_size() { [ "$(blockdev --getsize64 "$dev")" = "$1" ]; }

add_case resize 240 weft
commands_resize() { # a file that grows is seen by the host while it writes; one that shrinks keeps its size
    # Without a size in the configuration: with one, the namespace keeps to it.
    truncate -s 64M /run/ns1.img
    weft_describe <<<"subsystem $one any"
    printf '[[subsystem.namespace]]\nnsid = 1\nbackend = "file"\npath = "/run/ns1.img"\n' >>"$weft_config"
    target_again
    connect "$one"
    device "$ctrl" 1
    local job
    verify "$dev" 4k 2m --rate_iops=200 &
    job=$!
    soon 40 has_written "$dev" 50 || fail "no I/O"
    truncate -s 128M /run/ns1.img
    soon 40 has_size $((128 << 20)) || fail "the host still sees $(blockdev --getsize64 "$dev") bytes"
    wait "$job" || fail "I/O failed or did not verify"
    verify "$dev" 64k 2m --offset=100m
    truncate -s 96M /run/ns1.img
    nap 5
    has_size $((128 << 20)) || fail "a file that shrank changed the size to $(blockdev --getsize64 "$dev")"
    refused dd if="$dev" of=/dev/null bs=64k count=1 skip=$((120 << 4)) iflag=direct
    truncate -s 128M /run/ns1.img
    dd if="$dev" of=/dev/null bs=64k count=1 skip=$((120 << 4)) iflag=direct
    lived
}

# -- what a controller says of itself -----------------------------------------------------------------------------------

add_case identify 240 weft
commands_identify() {
    one_of memory 64 - 512
    nvme id-ctrl "/dev/$ctrl" -o json >/run/id-ctrl
    jq -e '.ver == 131072 and .mdts == 8 and .kas > 0 and .oncs > 0' /run/id-ctrl || fail "id-ctrl"
    jq -e '(.oncs / 1 % 2 == 1) and (.fuses == 1)' /run/id-ctrl || fail "id-ctrl: compare or fused"
    nvme id-ns "$dev" -o json | jq -e '.nsze == 131072 and .lbafs[0].ds == 9' || fail "id-ns"
    nvme ns-descs "$dev" | tee /run/said
    grep -q uuid /run/said || fail "ns-descs: no UUID"
    nvme nvm-id-ctrl "/dev/$ctrl" || fail "nvm-id-ctrl"
    nvme nvm-id-ns "$dev" || fail "nvm-id-ns"
    nvme cmdset-ind-id-ns "$dev" -n 1 || fail "cmdset-ind-id-ns"
    nvme list-ns "/dev/$ctrl" || fail "list-ns"
    nvme list-ctrl "/dev/$ctrl" | tee /run/said
    grep -q '0x' /run/said || fail "list-ctrl names no controller"
    nvme list-secondary "/dev/$ctrl" || echo "no secondary controllers"
    nvme primary-ctrl-caps "/dev/$ctrl" || echo "no primary controller capabilities"
    nvme id-domain "/dev/$ctrl" || echo "no domains"
    nvme list-endgrp "/dev/$ctrl" || echo "no endurance groups"
    nvme id-iocs "/dev/$ctrl" || echo "no I/O command set data"
    nvme show-regs "/dev/$ctrl" || fail "show-regs"
    lived
}

add_case features 240 weft
commands_features() { # whatever the target lists in its log of supported features can be got
    one_of memory 64 - 512
    local id
    for id in 1 2 4 5 7 0xa 0xb 0xe 0xf 0x16; do nvme get-feature "/dev/$ctrl" -f $id || fail "get-feature $id"; done
    refused nvme get-feature "$dev" -n 1 -f 0x84 # only with a state directory
    nvme get-feature "/dev/$ctrl" -f 0x81 -l 16 --cdw11=1 || fail "get-feature: host identifier"
    for id in 0 1 2 3; do nvme get-feature "/dev/$ctrl" -f 7 -s $id || fail "get-feature 7, select $id"; done
    refused nvme get-feature "/dev/$ctrl" -f 0x0d
    nvme set-feature "/dev/$ctrl" -f 0xb --value=0 || fail "set-feature: events"
    lived
}

add_case log-pages 240 weft
commands_log_pages() {
    one_of memory 64 - 512
    data 65536
    nvme write "$dev" -s 0 -c 127 -z 65536 -d /run/data
    nvme smart-log "/dev/$ctrl" -o json >/run/smart
    jq -e '.host_write_commands >= 1 and .data_units_written >= 1 and .media_errors == 0' /run/smart || fail "SMART: $(tr -d '\n' </run/smart)"
    refused nvme verify "$dev" -s $((1 << 40)) -c 0
    nvme error-log "/dev/$ctrl" -e 4 -o json | tee /run/errors
    jq -e '[.errors[] | select(.error_count > 0)] | length >= 1' /run/errors || fail "the error log has no entry of a command that failed"
    nvme fw-log "/dev/$ctrl" || fail "no firmware slot log"
    nvme effects-log "/dev/$ctrl" | tee /run/said
    grep -qiE 'ACS|IOCS' /run/said || fail "no effects log"
    nvme supported-log-pages "/dev/$ctrl" || fail "no log of supported log pages"
    nvme fid-support-effects-log "/dev/$ctrl" || fail "no log of supported features"
    nvme changed-ns-list-log "/dev/$ctrl" || fail "no changed namespace list"
    nvme persistent-event-log "/dev/$ctrl" -a 1 -l 512 || echo "no persistent event log"
    nvme persistent-event-log "/dev/$ctrl" -a 2 -l 0 || true
    refused nvme self-test-log "/dev/$ctrl"
    refused nvme get-log "/dev/$ctrl" --log-id=0xfe --log-len=64
    lived
}

# -- many ---------------------------------------------------------------------------------------------------------------

descriptors() { local all=("/proc/$weft_pid/fd/"*); echo "${#all[@]}"; }
no_connections() { http /metrics | awk '/^weft_connections_open[ {]/ { sum += $NF } END { exit sum != 0 }'; }

add_case connects 900 weft
commands_connects() { # 1,024 hosts come and go, eight at a time; nothing of them stays
    target_start <<<"subsystem $one any
        namespace 1 memory 16"
    local first round n fd said made
    first=$(descriptors)
    { set +x; } 2>/dev/null
    for ((round = 0; round < 128; round++)); do
        made=()
        for n in 1 2 3 4 5 6 7 8; do
            exec {fd}<>/dev/nvme-fabrics
            echo "nqn=$one,transport=tcp,traddr=$address,trsvcid=$service,nr_io_queues=1,hostnqn=$host,hostid=${host##*:},duplicate_connect" >&"$fd" ||
                fail "connect $((round * 8 + n)) failed"
            read -r said <&"$fd"
            exec {fd}>&-
            said=${said#instance=}
            made+=("${said%%,*}")
        done
        for n in "${made[@]}"; do echo 1 >"/sys/class/nvme/nvme$n/delete_controller"; done
    done
    set -x
    soon 20 no_connections || fail "connections are still open"
    [ "$(descriptors)" -le "$first" ] || fail "$(descriptors) descriptors are open, $first were before"
    connect "$one"
    device "$ctrl" 1
    verify "$dev" 4k 1m
}
