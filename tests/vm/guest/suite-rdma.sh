# Suite rdma: a Linux host over NVMe/RDMA, both in this guest, over soft-RoCE on a network device without a wire.
# shellcheck shell=bash disable=SC2034,SC2153,SC2154,SC2317,SC2329 # variables and functions of lib.sh, functions called by name
SUITE_MODULES="nvme-rdma nvme-tcp rdma_rxe rdma_ucm ib_uverbs dummy ext4"

one=nqn.2026-12.io.weft:one
two=nqn.2026-12.io.weft:two
# rdma_cm does not go over loopback.
net=192.168.77.1

# The device, once for all cases; what is left of it is looked at after each.
rdma_up() {
    transport=rdma address=$net
    if [ ! -e /sys/class/net/roce0 ]; then
        ip link add roce0 type dummy
        ip addr add $net/24 dev roce0
        ip -6 addr add fd77::1/64 dev roce0 nodad
        ip link set roce0 mtu 4200 up
    fi
    [ -e /sys/class/infiniband/rxe0 ] || soon 10 rdma link add rxe0 type rxe netdev roce0
    soon 10 rdma_is_active || fail "the RDMA device does not come up: $(rdma link)"
}
rdma_is_active() { rdma link show rxe0/1 | grep -q 'state ACTIVE'; }

one_memory() { # [MIB]: a target with one subsystem that has one memory namespace
    rdma_up
    target_start <<<"subsystem $one any
        namespace 1 memory ${1:-64}"
}

# Objects of RDMA that belong to weft.
rdma_objects() { rdma resource show "$1" | grep -c 'comm weft' || true; }
no_queue_pairs() { [ "$(rdma_objects qp)" = 0 ]; }

# -- discovery ----------------------------------------------------------------------------------------------------------

add_case discover 120 short weft
rdma_discover() { # both transports of a subsystem in one log, whichever asks
    rdma_up
    target_start <<<"port $net tcp
        port $net rdma
        subsystem $one any
        namespace 1 memory 16"
    for transport in rdma tcp; do
        discover | tee /run/discovered
        [ "$(grep -c "subnqn: *$one\$" /run/discovered)" = 2 ] || fail "asked by $transport, $one is not there twice"
        awk '/^trtype: *rdma/ { on = 1 } /^=====/ { on = 0 } on' /run/discovered >/run/rdma-entry
        grep -q "traddr: *$net\$" /run/rdma-entry || fail "asked by $transport: no address of the RDMA port"
        grep -q 'rdma_qptype: *connected' /run/rdma-entry || fail "asked by $transport: RDMA_QPTYPE"
        grep -q 'rdma_prtype: *not specified' /run/rdma-entry || fail "asked by $transport: RDMA_PRTYPE"
        grep -q 'rdma_cms: *rdma-cm' /run/rdma-entry || fail "asked by $transport: RDMA_CMS"
    done
}

# -- connect ------------------------------------------------------------------------------------------------------------

dmesg_of_case() { dmesg | awk '/weft-vm: start/ { text = "" } { text = text $0 "\n" } END { printf "%s", text }'; }

add_case connect 180 short
rdma_connect() {
    one_memory
    connect "$one" --nr-io-queues=1
    device "$ctrl" 1
    [ "$(blockdev --getsize64 "$dev")" = $((64 << 20)) ] || fail "the size is $(blockdev --getsize64 "$dev")"
    nvme list | tee /run/list
    grep -q "^$dev " /run/list || fail "nvme list does not show $dev"
    verify "$dev" 4k 1m
    nvme id-ctrl "/dev/$ctrl" -o json >/run/id-ctrl
    jq -e '(.sgls % 8) >= 4 and .icdoff == 0 and .ioccsz >= 4' /run/id-ctrl || fail "id-ctrl: sgls, icdoff or ioccsz"
    is_live "$ctrl" || fail "$ctrl is $(state "$ctrl")"
    ! dmesg_of_case | grep -E "$ctrl:.*(error|timeout|ogus)" || fail "the host complains, see case.log"
    disconnect "$ctrl"
    [ "$TARGET" != weft ] || soon 20 no_queue_pairs || fail "queue pairs are left: $(rdma resource show qp)"
}

add_case ipv6 180
rdma_ipv6() {
    rdma_up
    address=fd77::1
    target_start <<<"port fd77::1
        subsystem $one any
        namespace 1 memory 64"
    connect "$one" --nr-io-queues=1
    device "$ctrl" 1
    verify "$dev" 4k 1m
}

add_case mkfs-copy 240 short
rdma_mkfs_copy() {
    one_memory 128
    connect "$one"
    device "$ctrl" 1
    mkfs.ext4 -q "$dev"
    mkdir -p /mnt/disk
    mount "$dev" /mnt/disk
    cp -r /usr/bin/*sh /usr/sbin/mke2fs /usr/lib/x86_64-linux-gnu/libc.so* /mnt/disk/
    umount /mnt/disk
    echo 3 >/proc/sys/vm/drop_caches
    mount "$dev" /mnt/disk
    local file
    for file in /usr/bin/*sh; do cmp "$file" "/mnt/disk/${file##*/}" || fail "$file differs"; done
    umount /mnt/disk
    fsck.ext4 -fn "$dev" || fail "the file system is damaged"
}

add_case verify-sizes 480
rdma_verify_sizes() {
    rdma_up
    target_start <<<"subsystem $one any
        namespace 1 memory 64 - 512"
    connect "$one" --nr-io-queues=2
    device "$ctrl" 1
    local size depth
    for depth in 1 2 3 32 128; do
        # shellcheck disable=SC2086 # two words: block size and amount
        for size in "512 128k" "4k 512k" "16k 1m" "1m 4m"; do verify "$dev" $size --iodepth=$depth; done
    done
}

add_case queues 360
rdma_queues() {
    one_memory
    local count
    for count in 1 2; do
        connect "$one" --nr-io-queues=$count --nr-poll-queues=$((count - 1))
        device "$ctrl" 1
        verify "$dev" 16k 4m --numjobs=2 --offset_increment=8m
        disconnect "$ctrl"
    done
}

add_case queue-size 240
rdma_queue_size() {
    one_memory
    local size
    for size in 16 128; do
        connect "$one" --queue-size=$size --nr-io-queues=1
        device "$ctrl" 1
        verify "$dev" 4k 2m --iodepth=200
        disconnect "$ctrl"
    done
}

add_case in-capsule 360 weft
rdma_in_capsule() {
    rdma_up
    local size
    for size in 4 16; do
        weft_limits=$'[limits]\nin_capsule = "'"$size KiB\""
        target_start <<<"subsystem $one any
            namespace 1 memory 64 - 512"
        connect "$one" --nr-io-queues=1
        device "$ctrl" 1
        [ "$(nvme id-ctrl "/dev/$ctrl" -o json | jq .ioccsz)" = $((4 + size * 64)) ] || fail "ioccsz"
        for bs in 512 4k 8k 16k 20k; do verify "$dev" $bs 1m; done
        disconnect "$ctrl"
        target_stop
    done
    target_again
}

add_case denied 120
rdma_denied() {
    rdma_up
    target_start <<<"subsystem $one $host_b
        namespace 1 memory 64"
    local said
    # shellcheck disable=SC2046 # two words
    if said=$(nvme connect -t rdma -a "$address" -s "$service" -n "$one" $(identity) 2>&1); then
        fail "a host that is not allowed was let in: $said"
    fi
    as_host "$host_b"
    connect "$one" --nr-io-queues=1
    device "$ctrl" 1
}

# -- leaving and coming back --------------------------------------------------------------------------------------------

add_case reset 300
rdma_reset() { # the host resets its controller while I/O runs: nothing of it reaches the application
    one_memory
    connect "$one" --nr-io-queues=2
    device "$ctrl" 1
    local job round
    verify "$dev" 4k 4m --rate_iops=300 &
    job=$!
    soon 40 has_written "$dev" 100 || fail "no I/O"
    for round in 1 2 3; do
        nvme reset "/dev/$ctrl"
        soon 40 is_live "$ctrl" || fail "$ctrl is $(state "$ctrl") after reset $round"
    done
    wait "$job" || fail "I/O failed or did not verify"
}

add_case restart 300 short
rdma_restart() { # the target is killed under I/O and comes back, and all data is there
    rdma_up
    target_start <<<"subsystem $one any
        namespace 1 file 64 /run/ns1.img"
    connect "$one" --ctrl-loss-tmo=120 --reconnect-delay=1
    device "$ctrl" 1
    local job
    verify "$dev" 4k 4m --rate_iops=300 &
    job=$!
    soon 40 has_written "$dev" 150 || fail "no I/O"
    target_kill
    nap 3
    kill -0 "$job" || fail "I/O failed at once when the target went"
    target_again
    soon 90 is_live "$ctrl" || fail "$ctrl is $(state "$ctrl") 90 s after the target came back"
    wait "$job" || fail "I/O failed or did not verify"
}

add_case multipath 300 weft
rdma_multipath() { # one namespace over TCP and RDMA as one device; one path is cut under I/O, and then the other
    rdma_up
    target_start <<<"port $net tcp
        port $net rdma
        subsystem $one any
        namespace 1 memory 64"
    local by_rdma by_tcp job
    connect "$one" --nr-io-queues=1 --ctrl-loss-tmo=120 --reconnect-delay=1
    by_rdma=$ctrl
    transport=tcp
    connect "$one" --nr-io-queues=1 --ctrl-loss-tmo=120 --reconnect-delay=1
    by_tcp=$ctrl
    device "$by_rdma" 1
    local first=$dev
    device "$by_tcp" 1
    [ "$dev" = "$first" ] || fail "two devices, $first and $dev, not one"
    verify "$dev" 4k 6m --rate_iops=300 &
    job=$!
    soon 40 has_written "$dev" 100 || fail "no I/O"
    disconnect "$by_rdma"
    soon 40 has_written "$dev" 400 || fail "no I/O over TCP alone"
    transport=rdma
    connect "$one" --nr-io-queues=1
    by_rdma=$ctrl
    disconnect "$by_tcp"
    wait "$job" || fail "I/O failed or did not verify"
    is_live "$by_rdma" || fail "$by_rdma is $(state "$by_rdma")"
}

# What it costs: mean numbers of I/O a second, to be compared with those of TARGET=nvmet. With ICOUNT=1 guest time counts
# instructions, so that the figures repeat. Without polling: host and target share the processors.
add_case speed 900
rdma_speed() {
    rdma_up
    weft_limits=$'[reactors]\npoll_us = 0'
    target_start <<<"subsystem $one any
        namespace 1 memory 64 - 4096"
    connect "$one" --nr-io-queues=2
    device "$ctrl" 1
    dd if=/dev/zero of="$dev" bs=1M oflag=direct count=64
    local job said
    for job in "randread 4k 1" "randread 4k 32" "randwrite 4k 32" "read 128k 8" "write 128k 8"; do
        # shellcheck disable=SC2086 # three words
        set -- $job
        said=$(fio --name=speed --thread --filename="$dev" --direct=1 --ioengine=io_uring --rw="$1" --bs="$2" --iodepth="$3" \
            --time_based --runtime=1 --size=64m --output-format=json |
            jq '.jobs[0] | if .read.iops > 0 then .read.iops else .write.iops end | floor')
        report note "$TARGET $1 $2 depth $3: $said IOPS"
    done
}

add_case many-connects 480 weft
rdma_many_connects() { # connections come and go and leave nothing
    one_memory
    local round
    for round in {1..30}; do
        connect "$one" --nr-io-queues=2
        disconnect "$ctrl"
    done
    soon 20 no_queue_pairs || fail "queue pairs are left: $(rdma resource show qp)"
    connect "$one" --nr-io-queues=2
    device "$ctrl" 1
    verify "$dev" 4k 1m
}

add_case device-gone 300 weft
rdma_device_gone() { # the device goes and comes back: TCP notices nothing, and the port serves again by itself
    rdma_up
    target_start <<<"port $net tcp
        port $net rdma
        subsystem $one any
        namespace 1 memory 64"
    connect "$one" --nr-io-queues=1
    device "$ctrl" 1
    verify "$dev" 4k 256k
    rdma link delete rxe0
    soon 30 is_gone "$ctrl" || fail "$ctrl is there without its device"
    transport=tcp
    connect "$one" --nr-io-queues=1
    device "$ctrl" 1
    verify "$dev" 4k 256k
    disconnect "$ctrl"
    rdma_up
    soon 60 connects_again || fail "the port does not serve again"
    device "$ctrl" 1
    verify "$dev" 4k 256k
}
connects_again() { # unlike `connect`, without failing the case
    local said
    # shellcheck disable=SC2046 # two words
    said=$(timeout 60 nvme connect -t rdma -a "$net" -s "$service" -n "$one" $(identity) --nr-io-queues=1 2>&1) || return 1
    ctrl=$(grep -oE 'nvme[0-9]+' <<<"$said" | tail -1)
}
