#include "vmm/device/serial.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    REG_DATA = 0,  // divisor low
    REG_IER = 1,   // divisor high
    REG_IIR = 2,   // write: FCR
    REG_LCR = 3,
    REG_MCR = 4,
    REG_LSR = 5,
    REG_MSR = 6,
    REG_SCRATCH = 7,
    LCR_DIVISOR = 0x80,
    IER_TRANSMIT = 2,
    IER_ALL = 0xf,
    IIR_NONE = 1,
    IIR_TRANSMIT = 2,
    IIR_FIFO = 0xc0,
    FCR_ENABLE = 1,
    MCR_ALL = 0x1f,
    MCR_INTERRUPT = 8,  // OUT2, which gates the interrupt line
    MCR_LOOP = 0x10,
    LSR_EMPTY = 0x60,    // transmitter idle
    MSR_PRESENT = 0xb0,  // carrier, data set ready, clear to send
};

struct serial {
    pthread_mutex_t lock;
    int irq_fd;
    uint8_t ier, lcr, mcr, scratch, fcr;
    uint8_t divisor[2];
    bool transmit_pending;  // "transmitter empty" was not yet told
    uint64_t total;
    uint8_t ring[SERIAL_RING_BYTES];
};

int serial_new(int irq_fd, struct serial **ret_serial)
{
    struct serial *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    pthread_mutex_init(&s->lock, NULL);
    s->irq_fd = irq_fd;
    *ret_serial = s;
    return 0;
}

struct serial *serial_free(struct serial *serial)
{
    if (serial != NULL) {
        pthread_mutex_destroy(&serial->lock);
        free(serial);
    }
    return NULL;
}

// "Transmitter empty" became true, or became interesting.
static void raise_transmit(struct serial *s)
{
    s->transmit_pending = true;
    if ((s->ier & IER_TRANSMIT) == 0 || (s->mcr & MCR_INTERRUPT) == 0)
        return;
    uint64_t one = 1;
    // A full counter means that the interrupt is on its way already.
    ssize_t n = write(s->irq_fd, &one, sizeof one);
    (void)n;
}

static void transmit(struct serial *s, uint8_t byte)
{
    s->ring[s->total % SERIAL_RING_BYTES] = byte;
    s->total++;
    raise_transmit(s);
}

static void write_register(struct serial *s, uint32_t reg, uint8_t value)
{
    bool divisor = (s->lcr & LCR_DIVISOR) != 0;
    switch (reg) {
    case REG_DATA:
        if (divisor)
            s->divisor[0] = value;
        else if ((s->mcr & MCR_LOOP) == 0)
            transmit(s, value);
        break;
    case REG_IER:
        if (divisor) {
            s->divisor[1] = value;
            break;
        }
        s->ier = value & IER_ALL;
        if ((s->ier & IER_TRANSMIT) != 0)
            raise_transmit(s);
        break;
    case REG_IIR:
        s->fcr = value;
        break;
    case REG_LCR:
        s->lcr = value;
        break;
    case REG_MCR:
        s->mcr = value & MCR_ALL;
        if (s->transmit_pending)
            raise_transmit(s);
        break;
    case REG_SCRATCH:
        s->scratch = value;
        break;
    default:
        break;
    }
}

static uint8_t read_interrupt(struct serial *s)
{
    uint8_t fifo = (s->fcr & FCR_ENABLE) != 0 ? IIR_FIFO : 0;
    if ((s->ier & IER_TRANSMIT) == 0 || !s->transmit_pending)
        return fifo | IIR_NONE;
    s->transmit_pending = false;  // reading it is the acknowledgement
    return fifo | IIR_TRANSMIT;
}

// In loop-back the modem's inputs show its outputs: RTS, DTR, OUT1, OUT2 as CTS, DSR, RI, DCD.
static uint8_t read_modem(const struct serial *s)
{
    if ((s->mcr & MCR_LOOP) == 0)
        return MSR_PRESENT;
    return (uint8_t)((s->mcr & 0xc) << 4 | (s->mcr & 2) << 3 | (s->mcr & 1) << 5);
}

static uint8_t read_register(struct serial *s, uint32_t reg)
{
    bool divisor = (s->lcr & LCR_DIVISOR) != 0;
    switch (reg) {
    case REG_DATA:
        return divisor ? s->divisor[0] : 0;
    case REG_IER:
        return divisor ? s->divisor[1] : s->ier;
    case REG_IIR:
        return read_interrupt(s);
    case REG_LCR:
        return s->lcr;
    case REG_MCR:
        return s->mcr;
    case REG_LSR:
        return LSR_EMPTY;
    case REG_MSR:
        return read_modem(s);
    case REG_SCRATCH:
    default:
        return s->scratch;
    }
}

// The registers are bytes: a wider access reaches one after the other.
void serial_write(void *arg, uint32_t offset, const void *data, uint32_t len)
{
    struct serial *s = arg;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < len; i++)
        write_register(s, offset + i, ((const uint8_t *)data)[i]);
    pthread_mutex_unlock(&s->lock);
}

void serial_read(void *arg, uint32_t offset, void *data, uint32_t len)
{
    struct serial *s = arg;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < len; i++)
        ((uint8_t *)data)[i] = read_register(s, offset + i);
    pthread_mutex_unlock(&s->lock);
}

void serial_save(struct serial *serial, struct serial_state *ret_state)
{
    pthread_mutex_lock(&serial->lock);
    *ret_state = (struct serial_state){
        .ier = serial->ier,
        .lcr = serial->lcr,
        .mcr = serial->mcr,
        .scratch = serial->scratch,
        .fcr = serial->fcr,
        .divisor = {serial->divisor[0], serial->divisor[1]},
        .transmit_pending = serial->transmit_pending,
    };
    pthread_mutex_unlock(&serial->lock);
}

int serial_restore(struct serial *serial, const struct serial_state *state)
{
    if ((state->ier & ~IER_ALL) != 0 || (state->mcr & ~MCR_ALL) != 0 || state->transmit_pending > 1)
        return -EINVAL;
    pthread_mutex_lock(&serial->lock);
    serial->ier = state->ier;
    serial->lcr = state->lcr;
    serial->mcr = state->mcr;
    serial->scratch = state->scratch;
    serial->fcr = state->fcr;
    memcpy(serial->divisor, state->divisor, sizeof serial->divisor);
    serial->transmit_pending = state->transmit_pending != 0;
    if (serial->transmit_pending)
        raise_transmit(serial);
    pthread_mutex_unlock(&serial->lock);
    return 0;
}

size_t serial_tail(struct serial *serial, void *bytes, size_t n, uint64_t *ret_total)
{
    pthread_mutex_lock(&serial->lock);
    uint64_t kept = serial->total < SERIAL_RING_BYTES ? serial->total : SERIAL_RING_BYTES;
    if (n > kept)
        n = (size_t)kept;
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)bytes)[i] = serial->ring[(serial->total - n + i) % SERIAL_RING_BYTES];
    *ret_total = serial->total;
    pthread_mutex_unlock(&serial->lock);
    return n;
}
