// PID 1 of the microVMs of test_vm_restore.py: work that a snapshot must carry over whole, and a door to ask about it.
//
// On every processor a process keeps values in vector registers, counts, and sleeps; a large piece of memory has known bytes; a
// timer is set.  The host connects to port 7 and sends one line:
//     state         what all of that says now
//     timer MS      sets the timer, which then must expire exactly once
//     read N        the first word of the disk's sector N
//     write N TEXT  puts TEXT there, and on the host's disk
//     volume        how many bytes the second disk has
//     vread N, vwrite N TEXT   likewise, of the second disk
//     frames N      takes the network device up and hands it N frames: how many it took, and its hardware address
// Each is answered by one line, and the connection ends.
#include "vm_modules.h"

#include <arpa/inet.h>
#include <emmintrin.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/if_packet.h>
#include <linux/vm_sockets.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/timerfd.h>
#include <time.h>

enum { PORT = 7, SECTOR = 512, FILLED_MIB = 6, CPUS_MAX = 32, LINE = 256 };

struct worker {
    volatile uint64_t count;
    volatile uint64_t sleeps;
    volatile uint64_t wrong;  // a vector register lost its value
};

static struct worker *workers;  // shared
static uint64_t *filled;
static uint64_t timer_expired;
static int timer;

static uint64_t mono_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static _Noreturn void work(struct worker *w, int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
    for (uint64_t round = 0;; round++) {
        __m128i mark = _mm_set_epi64x((long long)(round * 0x9e3779b97f4a7c15), cpu);
        __m128i kept = mark;
        for (int i = 0; i < 20000; i++)
            __asm__ volatile("" : "+x"(kept));  // it stays in a register
        __m128i same = _mm_cmpeq_epi8(kept, mark);
        w->wrong += _mm_movemask_epi8(same) != 0xffff;
        w->count++;
        if (round % 8 == 0) {
            uint64_t before = mono_us();
            usleep(1000);
            w->wrong += mono_us() < before + 1000;
            w->sleeps++;
        }
    }
}

static uint64_t word(uint64_t i)
{
    return (i + 1) * 0xd1342543de82ef95;
}

static void fill(void)
{
    size_t words = (size_t)FILLED_MIB << 17;
    filled = malloc(words * sizeof *filled);
    for (size_t i = 0; filled != NULL && i < words; i++)
        filled[i] = word(i);
}

static uint64_t wrong_words(void)
{
    uint64_t wrong = 0;
    for (size_t i = 0; i < (size_t)FILLED_MIB << 17; i++)
        wrong += filled[i] != word(i);
    return wrong;
}

static void say_state(char *out)
{
    uint64_t count = 0, sleeps = 0, wrong = 0;
    for (int i = 0; i < get_nprocs(); i++) {
        count += workers[i].count;
        sleeps += workers[i].sleeps;
        wrong += workers[i].wrong;
    }
    snprintf(out, LINE, "processors=%d count=%llu sleeps=%llu wrong=%llu words=%llu mono_us=%llu expired=%llu", get_nprocs(),
             (unsigned long long)count, (unsigned long long)sleeps, (unsigned long long)wrong,
             (unsigned long long)wrong_words(), (unsigned long long)mono_us(), (unsigned long long)timer_expired);
}

static void set_timer(int ms)
{
    timer_expired = 0;
    struct itimerspec when = {.it_value = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}};
    timerfd_settime(timer, 0, &when, NULL);
}

static void use_disk(const char *path, const char *line, char *out)
{
    static char sector[SECTOR] __attribute__((aligned(4096)));
    char text[64] = "";
    long number = 0;
    int fd = open(path, O_RDWR | O_DIRECT | O_SYNC), n = sscanf(line, "%*s %ld %63s", &number, text);
    ssize_t done = -1;
    if (fd >= 0 && n == 2) {
        memset(sector, 0, sizeof sector);
        memcpy(sector, text, strlen(text));
        done = pwrite(fd, sector, sizeof sector, number * SECTOR);
    } else if (fd >= 0) {
        done = pread(fd, sector, sizeof sector, number * SECTOR);
    }
    sector[SECTOR - 1] = '\0';
    snprintf(out, LINE, done == SECTOR ? "%.63s" : "failed", sector);
    close(fd);
}

static void say_volume(char *out)
{
    uint64_t bytes = 0;
    int fd = open("/dev/vdb", O_RDONLY);
    if (fd < 0 || ioctl(fd, BLKGETSIZE64, &bytes) != 0)
        strcpy(out, "none");
    else
        snprintf(out, LINE, "%llu", (unsigned long long)bytes);
    close(fd);
}

// Raw ones, as from a kernel that somebody has taken over: nothing but the monitor decides what becomes of them.
static void send_frames(int count, char *out)
{
    struct ifreq q = {.ifr_name = "eth0"};
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL)), sent = 0;
    uint8_t frame[64];
    memset(frame, 0xff, 6);
    if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &q) != 0) {
        snprintf(out, LINE, "none");
        close(fd);
        return;
    }
    q.ifr_flags |= IFF_UP;
    ioctl(fd, SIOCSIFFLAGS, &q);
    ioctl(fd, SIOCGIFHWADDR, &q);
    memcpy(frame + 6, q.ifr_hwaddr.sa_data, 6);
    memset(frame + 12, 0x88, sizeof frame - 12);
    const uint8_t *mac = frame + 6;
    ioctl(fd, SIOCGIFINDEX, &q);
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = q.ifr_ifindex, .sll_halen = 6};
    memset(to.sll_addr, 0xff, 6);
    for (int i = 0; i < count; i++)
        sent += sendto(fd, frame, sizeof frame, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)sizeof frame;
    snprintf(out, LINE, "%d %02x:%02x:%02x:%02x:%02x:%02x", sent, mac[0], mac[1], mac[2], mac[3], mac[4], mac[5]);
    close(fd);
}

static void serve(int fd)
{
    char line[LINE] = "", out[LINE] = "what?";
    for (size_t n = 0; n < sizeof line - 1 && memchr(line, '\n', n) == NULL;) {
        ssize_t r = read(fd, line + n, sizeof line - 1 - n);
        if (r <= 0)
            break;
        n += (size_t)r;
    }
    if (strncmp(line, "state", 5) == 0)
        say_state(out);
    else if (strncmp(line, "timer ", 6) == 0)
        set_timer(atoi(line + 6)), strcpy(out, "set");
    else if (strncmp(line, "read ", 5) == 0 || strncmp(line, "write ", 6) == 0)
        use_disk("/dev/vda", line, out);
    else if (strncmp(line, "vread ", 6) == 0 || strncmp(line, "vwrite ", 7) == 0)
        use_disk("/dev/vdb", line, out);
    else if (strncmp(line, "volume", 6) == 0)
        say_volume(out);
    else if (strncmp(line, "frames ", 7) == 0)
        send_frames(atoi(line + 7), out);
    strcat(out, "\n");
    if (write(fd, out, strlen(out)) < 0)
        perror("@write");
    close(fd);
}

static void loop(void)
{
    struct sockaddr_vm at = {.svm_family = AF_VSOCK, .svm_port = PORT, .svm_cid = VMADDR_CID_ANY};
    int listener = socket(AF_VSOCK, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 16) != 0)
        printf("@no vsock\n");
    printf("@ready\n");
    struct pollfd p[] = {{.fd = listener, .events = POLLIN}, {.fd = timer, .events = POLLIN}};
    while (poll(p, 2, -1) >= 0) {
        uint64_t times;
        if ((p[1].revents & POLLIN) != 0 && read(timer, &times, sizeof times) == sizeof times)
            timer_expired += times;
        if ((p[0].revents & POLLIN) != 0)
            serve(accept(listener, NULL, NULL));
    }
}

int main(void)
{
    mkdir("/proc", 0755);
    mkdir("/sys", 0755);
    mount("proc", "/proc", "proc", 0, NULL);
    mount("sysfs", "/sys", "sysfs", 0, NULL);
    mount("devtmpfs", "/dev", "devtmpfs", 0, NULL);
    setvbuf(stdout, NULL, _IOLBF, 0);
    load_modules();
    fill();
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    workers = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < get_nprocs() && i < CPUS_MAX; i++)
        if (fork() == 0)
            work(&workers[i], i);
    loop();
    return 1;
}
