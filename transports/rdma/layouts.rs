//! The generated structures beside those of the installed headers: a small C program prints sizes and offsets of both.
//!
//! It needs a C compiler and rdma-core's headers (Debian: libibverbs-dev, librdmacm-dev). With `WEFT_RDMA_HEADERS=1` (as in CI) their
//! absence is a failure; without, the test says that it compared nothing.

use super::bindings::types::*;
use std::{
    fs,
    mem::{offset_of, size_of},
    process::Command,
};

/// A structure: what to print in C, and what Rust makes of it.
struct Layout {
    expressions: Vec<String>,
    values: Vec<usize>,
}

macro_rules! layout {
    ($layout:ident, $name:ident { $($field:ident),* $(,)? }) => {
        $layout.expressions.push(format!("sizeof(struct {})", stringify!($name)));
        $layout.values.push(size_of::<$name>());
        $(
            $layout.expressions.push(format!("offsetof(struct {}, {})", stringify!($name), stringify!($field)));
            $layout.values.push(offset_of!($name, $field));
        )*
    };
}

#[rustfmt::skip]
fn layouts() -> Layout {
    let mut all = Layout { expressions: Vec::new(), values: Vec::new() };
    layout!(all, ibv_sge { addr, length, lkey });
    layout!(all, ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, wr, qp_type });
    layout!(all, ibv_recv_wr { wr_id, next, sg_list, num_sge });
    layout!(all, ibv_wc { wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, slid });
    layout!(all, ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data });
    layout!(all, ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all });
    layout!(all, ibv_srq_attr { max_wr, max_sge, srq_limit });
    layout!(all, ibv_srq_init_attr { srq_context, attr });
    layout!(all, ibv_device_attr {
        fw_ver, max_mr_size, max_qp, max_qp_wr, device_cap_flags, max_sge, max_cqe, max_qp_rd_atom, max_qp_init_rd_atom, max_srq_wr,
        max_srq_sge, phys_port_cnt,
    });
    layout!(all, ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors });
    layout!(all, ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv });
    layout!(all, ibv_qp { context, qp_num });
    layout!(all, ibv_cq { context, channel, handle, cqe });
    layout!(all, ibv_srq { context });
    layout!(all, ibv_pd { context });
    layout!(all, ibv_mr { context, addr, length, lkey, rkey });
    layout!(all, ibv_comp_channel { context, fd });
    layout!(all, rdma_event_channel { fd });
    layout!(all, rdma_cm_id { verbs, channel, context, qp, route, ps, port_num, event });
    layout!(all, rdma_addr { addr });
    layout!(all, rdma_route { addr, num_paths });
    layout!(all, rdma_conn_param {
        private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num,
    });
    layout!(all, rdma_cm_event { id, listen_id, event, status, param });
    layout!(all, sockaddr_storage { ss_family });
    layout!(all, sockaddr_in { sin_family, sin_port, sin_addr });
    layout!(all, sockaddr_in6 { sin6_family, sin6_port, sin6_addr, sin6_scope_id });
    all
}

/// Constants, by what the headers have for them.
const CONSTANTS: &[(&str, u32)] = &[
    ("IBV_WC_WR_FLUSH_ERR", IBV_WC_WR_FLUSH_ERR),
    ("IBV_WC_LOC_QP_OP_ERR", IBV_WC_LOC_QP_OP_ERR),
    ("IBV_WC_REM_ACCESS_ERR", IBV_WC_REM_ACCESS_ERR),
    ("IBV_WC_RETRY_EXC_ERR", IBV_WC_RETRY_EXC_ERR),
    ("IBV_WR_SEND_WITH_INV", IBV_WR_SEND_WITH_INV),
    ("IBV_WR_RDMA_READ", IBV_WR_RDMA_READ),
    ("IBV_SEND_SIGNALED", IBV_SEND_SIGNALED),
    ("IBV_SEND_SOLICITED", IBV_SEND_SOLICITED),
    ("IBV_QPT_RC", IBV_QPT_RC),
    ("IBV_ACCESS_LOCAL_WRITE", IBV_ACCESS_LOCAL_WRITE),
    ("IBV_DEVICE_MEM_MGT_EXTENSIONS", IBV_DEVICE_MEM_MGT_EXTENSIONS),
    ("RDMA_CM_EVENT_CONNECT_REQUEST", RDMA_CM_EVENT_CONNECT_REQUEST),
    ("RDMA_CM_EVENT_ESTABLISHED", RDMA_CM_EVENT_ESTABLISHED),
    ("RDMA_CM_EVENT_DISCONNECTED", RDMA_CM_EVENT_DISCONNECTED),
    ("RDMA_CM_EVENT_DEVICE_REMOVAL", RDMA_CM_EVENT_DEVICE_REMOVAL),
    ("RDMA_CM_EVENT_ADDR_CHANGE", RDMA_CM_EVENT_ADDR_CHANGE),
    ("RDMA_PS_TCP", RDMA_PS_TCP),
];

#[test]
fn structures_are_those_of_the_installed_headers() {
    let required = std::env::var_os("WEFT_RDMA_HEADERS").is_some();
    let there = fs::exists("/usr/include/rdma/rdma_cma.h").unwrap_or(false);
    if !there || Command::new("cc").arg("--version").output().is_err() {
        assert!(!required, "no C compiler or no headers: install gcc, libibverbs-dev and librdmacm-dev");
        println!("nothing compared: no C compiler, or no headers of rdma-core");
        return;
    }
    let Layout { mut expressions, mut values } = layouts();
    for (name, value) in CONSTANTS {
        expressions.push((*name).into());
        values.push(*value as usize);
    }
    let prints: String =
        expressions.iter().map(|what| format!("printf(\"%zu\\n\", (size_t)({what}));\n")).collect();
    let source = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <netinet/in.h>\n#include <rdma/rdma_cma.h>\nint main(void) {{\n{prints}return 0; }}\n"
    );
    let directory = std::env::temp_dir().join(format!("weft-layouts-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let (program, text) = (directory.join("layouts"), directory.join("layouts.c"));
    fs::write(&text, source).unwrap();
    let compiled = Command::new("cc").arg(&text).arg("-o").arg(&program).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().unwrap();
    fs::remove_dir_all(&directory).unwrap();
    let theirs: Vec<usize> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), values.len());
    for ((what, ours), theirs) in expressions.iter().zip(values).zip(theirs) {
        assert_eq!(ours, theirs, "{what}");
    }
}
