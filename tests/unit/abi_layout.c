// The public structs as programs built against 0.1 know them (64-bit Linux): this file must compile.
//
// What a struct has may be added at its end, out of `reserved`; then its fields and the smaller `reserved` are added here, and
// no other line changes.
#include <libsandbox.h>
#include <stddef.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), "the size of " #type)
#define FIELD(type, field, offset, bytes)                                                                                      \
    _Static_assert(offsetof(type, field) == (offset) && sizeof(((type *)0)->field) == (bytes), #type "." #field)
#define VALUE(name, number) _Static_assert((name) == (number), #name)

#if defined(__LP64__)
SIZE(sandbox_spec_t, 128);
FIELD(sandbox_spec_t, memory_mib, 0, 8);
FIELD(sandbox_spec_t, vcpu_count, 8, 4);
FIELD(sandbox_spec_t, template_name, 16, 8);
FIELD(sandbox_spec_t, env_vars, 24, 8);
FIELD(sandbox_spec_t, pool_wait_ms, 32, 4);
FIELD(sandbox_spec_t, session_key, 40, 8);
FIELD(sandbox_spec_t, ttl_seconds, 48, 4);
FIELD(sandbox_spec_t, egress_allow, 56, 8);
FIELD(sandbox_spec_t, egress_deny_all, 64, 4);
FIELD(sandbox_spec_t, min_isolation, 68, 4);
FIELD(sandbox_spec_t, disk_mib, 72, 8);
FIELD(sandbox_spec_t, grant_profile, 80, 8);
FIELD(sandbox_spec_t, principal, 88, 8);
FIELD(sandbox_spec_t, reserved, 96, 32);

SIZE(sandbox_network_t, 48);
FIELD(sandbox_network_t, egress, 0, 8);
FIELD(sandbox_network_t, egress_count, 8, 8);
FIELD(sandbox_network_t, guest_address, 16, 8);
FIELD(sandbox_network_t, host_address, 24, 8);
FIELD(sandbox_network_t, prefix_bits, 32, 4);
FIELD(sandbox_network_t, broker_port, 36, 4);
FIELD(sandbox_network_t, transparent, 40, 1);

SIZE(sandbox_status_t, 32);
FIELD(sandbox_status_t, sandbox_id, 0, 4);
FIELD(sandbox_status_t, is_running, 4, 1);
FIELD(sandbox_status_t, uptime_ms, 8, 8);
FIELD(sandbox_status_t, memory_rss_mib, 16, 8);
FIELD(sandbox_status_t, page_faults, 24, 4);

SIZE(sandbox_details_t, 160);
FIELD(sandbox_details_t, sandbox_id, 0, 4);
FIELD(sandbox_details_t, is_running, 4, 1);
FIELD(sandbox_details_t, memory, 5, 1);
FIELD(sandbox_details_t, uptime_ms, 8, 8);
FIELD(sandbox_details_t, memory_rss_mib, 16, 8);
FIELD(sandbox_details_t, memory_private_mib, 24, 8);
FIELD(sandbox_details_t, memory_shared_mib, 32, 8);
FIELD(sandbox_details_t, page_faults, 40, 8);
FIELD(sandbox_details_t, state, 48, 16);
FIELD(sandbox_details_t, snapshot_id, 64, 32);
FIELD(sandbox_details_t, reserved, 96, 64);

SIZE(sandbox_snapshot_t, 232);
FIELD(sandbox_snapshot_t, id, 0, 32);
FIELD(sandbox_snapshot_t, template_name, 32, 72);
FIELD(sandbox_snapshot_t, source_sandbox_id, 104, 4);
FIELD(sandbox_snapshot_t, vcpu_count, 108, 4);
FIELD(sandbox_snapshot_t, isolation, 112, 4);
FIELD(sandbox_snapshot_t, depth, 116, 4);
FIELD(sandbox_snapshot_t, memory_mib, 120, 8);
FIELD(sandbox_snapshot_t, disk_mib, 128, 8);
FIELD(sandbox_snapshot_t, created_at, 136, 8);
FIELD(sandbox_snapshot_t, bytes, 144, 8);
FIELD(sandbox_snapshot_t, pause_us, 152, 8);
FIELD(sandbox_snapshot_t, memory, 160, 1);
FIELD(sandbox_snapshot_t, volume_left_out, 161, 1);
FIELD(sandbox_snapshot_t, unsynced, 162, 1);
FIELD(sandbox_snapshot_t, reserved, 168, 64);

SIZE(sandbox_fork_spec_t, 64);
FIELD(sandbox_fork_spec_t, env_vars, 0, 8);
FIELD(sandbox_fork_spec_t, reserved, 8, 56);

SIZE(sandbox_exec_spec_t, 128);
FIELD(sandbox_exec_spec_t, command, 0, 8);
FIELD(sandbox_exec_spec_t, argv, 8, 8);
FIELD(sandbox_exec_spec_t, env, 16, 8);
FIELD(sandbox_exec_spec_t, cwd, 24, 8);
FIELD(sandbox_exec_spec_t, timeout_ms, 32, 4);
FIELD(sandbox_exec_spec_t, stdin_data, 40, 8);
FIELD(sandbox_exec_spec_t, stdin_len, 48, 8);
FIELD(sandbox_exec_spec_t, max_output, 56, 8);
FIELD(sandbox_exec_spec_t, grant_profile, 64, 8);
FIELD(sandbox_exec_spec_t, principal, 72, 8);
FIELD(sandbox_exec_spec_t, min_isolation, 80, 4);
FIELD(sandbox_exec_spec_t, reserved, 88, 40);

SIZE(sandbox_exec_result_t, 168);
FIELD(sandbox_exec_result_t, exit_code, 0, 4);
FIELD(sandbox_exec_result_t, term_signal, 4, 4);
FIELD(sandbox_exec_result_t, timed_out, 8, 1);
FIELD(sandbox_exec_result_t, output_truncated, 9, 1);
FIELD(sandbox_exec_result_t, output_limit_hit, 10, 1);
FIELD(sandbox_exec_result_t, oom_killed, 11, 1);
FIELD(sandbox_exec_result_t, out, 16, 8);
FIELD(sandbox_exec_result_t, out_len, 24, 8);
FIELD(sandbox_exec_result_t, err, 32, 8);
FIELD(sandbox_exec_result_t, err_len, 40, 8);
FIELD(sandbox_exec_result_t, out_total, 48, 8);
FIELD(sandbox_exec_result_t, err_total, 56, 8);
FIELD(sandbox_exec_result_t, duration_us, 64, 8);
FIELD(sandbox_exec_result_t, user_us, 72, 8);
FIELD(sandbox_exec_result_t, system_us, 80, 8);
FIELD(sandbox_exec_result_t, max_rss_kib, 88, 8);
FIELD(sandbox_exec_result_t, start_errno, 96, 4);
FIELD(sandbox_exec_result_t, isolation, 100, 4);
FIELD(sandbox_exec_result_t, grant_id, 104, 4);
FIELD(sandbox_exec_result_t, grant, 112, 8);
FIELD(sandbox_exec_result_t, reserved, 120, 48);

SIZE(sandbox_dirent_t, 64);
FIELD(sandbox_dirent_t, name, 0, 8);
FIELD(sandbox_dirent_t, type, 8, 4);
FIELD(sandbox_dirent_t, mode, 12, 4);
FIELD(sandbox_dirent_t, size, 16, 8);
FIELD(sandbox_dirent_t, mtime, 24, 8);
FIELD(sandbox_dirent_t, reserved, 32, 32);

SIZE(sandbox_fstat_t, 80);
FIELD(sandbox_fstat_t, type, 0, 4);
FIELD(sandbox_fstat_t, mode, 4, 4);
FIELD(sandbox_fstat_t, uid, 8, 4);
FIELD(sandbox_fstat_t, gid, 12, 4);
FIELD(sandbox_fstat_t, size, 16, 8);
FIELD(sandbox_fstat_t, mtime, 24, 8);
FIELD(sandbox_fstat_t, mtime_nsec, 32, 4);
FIELD(sandbox_fstat_t, nlink, 36, 4);
FIELD(sandbox_fstat_t, inode, 40, 8);
FIELD(sandbox_fstat_t, reserved, 48, 32);
#endif

VALUE(SANDBOX_OK, 0);
VALUE(SANDBOX_ERR_POOL_EXHAUSTED, -1);
VALUE(SANDBOX_ERR_INVALID_SPEC, -2);
VALUE(SANDBOX_ERR_DAEMON_UNREACHABLE, -3);
VALUE(SANDBOX_ERR_PERMISSION_DENIED, -4);
VALUE(SANDBOX_ERR_INTERNAL, -5);
VALUE(SANDBOX_ERR_SESSION_EXPIRED, -6);
VALUE(SANDBOX_ERR_SESSION_LIMIT, -7);
VALUE(SANDBOX_ERR_SESSION_UNKNOWN, -8);
VALUE(SANDBOX_ERR_GUEST_UNAVAILABLE, -9);
VALUE(SANDBOX_ERR_PATH_DENIED, -10);
VALUE(SANDBOX_ERR_NOT_FOUND, -11);
VALUE(SANDBOX_ERR_EXISTS, -12);
VALUE(SANDBOX_ERR_TOO_LARGE, -13);
VALUE(SANDBOX_ERR_GUEST_IO, -14);
VALUE(SANDBOX_ERR_TIMEOUT, -15);
VALUE(SANDBOX_ISOLATION_NONE, 0);
VALUE(SANDBOX_ISOLATION_PROCESS, 1);
VALUE(SANDBOX_ISOLATION_CONTAINER, 2);
VALUE(SANDBOX_ISOLATION_KERNEL, 3);
VALUE(SANDBOX_ISOLATION_VM, 4);
VALUE(SANDBOX_FILE_OTHER, 0);
VALUE(SANDBOX_FILE_REGULAR, 1);
VALUE(SANDBOX_FILE_DIRECTORY, 2);
VALUE(SANDBOX_FILE_SYMLINK, 3);
VALUE(SANDBOX_FILE_FIFO, 4);
VALUE(SANDBOX_FILE_SOCKET, 5);
VALUE(SANDBOX_FILE_CHAR_DEVICE, 6);
VALUE(SANDBOX_FILE_BLOCK_DEVICE, 7);

VALUE(SANDBOX_MAX_FILE, (4u * 1024 * 1024));
VALUE(SANDBOX_MAX_STDIN, (64u * 1024));
VALUE(SANDBOX_EXEC_STDOUT_HEAD, (32u * 1024));
VALUE(SANDBOX_EXEC_STDERR_HEAD, (16u * 1024));
VALUE(SANDBOX_MAX_GUEST_OPS, 16);
VALUE(SANDBOX_MAX_OWNED, 128);
VALUE(SANDBOX_MAX_FORK, 64);
VALUE(SANDBOX_WRITE_APPEND, 1u);
VALUE(SANDBOX_WRITE_EXCL, 2u);
VALUE(SANDBOX_WRITE_PARENTS, 4u);

_Static_assert(sizeof(sandbox_error_t) == 4 && sizeof(sandbox_isolation_t) == 4 && sizeof(sandbox_file_type_t) == 4, "enums");

int main(void)
{
    return 0;
}
