#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/random.h"

#define FDS 1024
#define PATH 512

/* ---- the list of changes ---- */

typedef enum kind { MAKE, FOLDER, WRITE, SIZE, GROW, SYNC, RENAME, EXCHANGE, REMOVE } kind;

typedef struct change {
    kind kind;
    char path[PATH]; /* below the folder that is watched; "" is that folder */
    char to[PATH];
    int64_t at;
    size_t bytes;
    unsigned char *data;
} change;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char watched[PATH];
static bool recording;
static change *changes;
static size_t count, capacity;
static char *paths[FDS]; /* of open descriptors below the folder */
static int64_t positions[FDS];

/* The path below the watched folder; NULL if it is elsewhere. */
static const char *below(const char *path)
{
    size_t n = strlen(watched);
    if (!recording || strncmp(path, watched, n) != 0 || (path[n] != '/' && path[n] != '\0'))
        return NULL;
    return path[n] == '/' ? path + n + 1 : path + n;
}

static void note(
    kind what, const char *path, const char *to, int64_t at, const void *data, size_t bytes)
{
    pthread_mutex_lock(&lock);
    if (count == capacity)
        changes = realloc(changes, sizeof *changes * (capacity = 2 * capacity + 64));
    change *c = &changes[count++];
    *c = (change){.kind = what, .at = at, .bytes = bytes};
    snprintf(c->path, sizeof c->path, "%s", path);
    snprintf(c->to, sizeof c->to, "%s", to != NULL ? to : "");
    if (data != NULL) {
        c->data = malloc(bytes + 1);
        memcpy(c->data, data, bytes);
    }
    pthread_mutex_unlock(&lock);
}

static const char *path_of(int fd)
{
    return fd >= 0 && fd < FDS ? paths[fd] : NULL;
}

static void opened(int fd, const char *path)
{
    if (fd < 0 || fd >= FDS || path == NULL)
        return;
    free(paths[fd]);
    paths[fd] = strdup(path);
    positions[fd] = 0;
}

int __real_open(const char *path, int flags, ...);
int __real_openat(int folder, const char *path, int flags, ...);
ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t at);
int __real_ftruncate(int fd, off_t bytes);
int __real_fallocate(int fd, int mode, off_t at, off_t bytes);
int __real_fsync(int fd);
int __real_close(int fd);
int __real_rename(const char *from, const char *to);
int __real_renameat2(int a, const char *from, int b, const char *to, unsigned flags);
int __real_mkdir(const char *path, mode_t mode);
int __real_unlink(const char *path);
int __real_unlinkat(int folder, const char *name, int flags);
int __real_rmdir(const char *path);

int __wrap_open(const char *path, int flags, ...);
int __wrap_openat(int folder, const char *path, int flags, ...);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at);
int __wrap_ftruncate(int fd, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes);
int __wrap_fsync(int fd);
int __wrap_close(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_unlink(const char *path);
int __wrap_unlinkat(int folder, const char *name, int flags);
int __wrap_rmdir(const char *path);

int __wrap_open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    const char *inside = below(path);
    bool made = inside != NULL && (flags & O_CREAT) && access(path, F_OK) != 0;
    int fd = __real_open(path, flags, mode);
    if (fd >= 0 && made)
        note(MAKE, inside, NULL, 0, NULL, 0);
    opened(fd, inside);
    return fd;
}

/* Only ever asked for folders that are about to be emptied. */
int __wrap_openat(int folder, const char *name, int flags, ...)
{
    char path[2 * PATH];
    int fd = __real_openat(folder, name, flags);
    if (path_of(folder) != NULL) {
        snprintf(path, sizeof path, "%s/%s", path_of(folder), name);
        opened(fd, path);
    }
    return fd;
}

ssize_t __wrap_write(int fd, const void *data, size_t bytes)
{
    ssize_t n = __real_write(fd, data, bytes);
    if (n > 0 && path_of(fd) != NULL) {
        note(WRITE, path_of(fd), NULL, positions[fd], data, (size_t)n);
        positions[fd] += n;
    }
    return n;
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    ssize_t n = __real_pwrite(fd, data, bytes, at);
    if (n > 0 && path_of(fd) != NULL)
        note(WRITE, path_of(fd), NULL, at, data, (size_t)n);
    return n;
}

int __wrap_ftruncate(int fd, off_t bytes)
{
    int result = __real_ftruncate(fd, bytes);
    if (result == 0 && path_of(fd) != NULL)
        note(SIZE, path_of(fd), NULL, bytes, NULL, 0);
    return result;
}

int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes)
{
    int result = __real_fallocate(fd, mode, at, bytes);
    if (result == 0 && path_of(fd) != NULL)
        note(GROW, path_of(fd), NULL, at + bytes, NULL, 0);
    return result;
}

int __wrap_fsync(int fd)
{
    if (path_of(fd) == NULL)
        return __real_fsync(fd);
    note(SYNC, path_of(fd), NULL, 0, NULL, 0); /* the real disk is not what is tested */
    return 0;
}

int __wrap_close(int fd)
{
    if (fd >= 0 && fd < FDS) {
        free(paths[fd]);
        paths[fd] = NULL;
    }
    return __real_close(fd);
}

static int renamed(int result, kind what, const char *from, const char *to)
{
    const char *a = below(from), *b = below(to);
    if (result == 0 && a != NULL && b != NULL)
        note(what, a, b, 0, NULL, 0);
    return result;
}

int __wrap_rename(const char *from, const char *to)
{
    return renamed(__real_rename(from, to), RENAME, from, to);
}

int __wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    kind what = flags & RENAME_EXCHANGE ? EXCHANGE : RENAME;
    return renamed(__real_renameat2(a, from, b, to, flags), what, from, to);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    int result = __real_mkdir(path, mode);
    if (result == 0 && below(path) != NULL)
        note(FOLDER, below(path), NULL, 0, NULL, 0);
    return result;
}

static int removed(int result, const char *path)
{
    if (result == 0 && path != NULL)
        note(REMOVE, path, NULL, 0, NULL, 0);
    return result;
}

int __wrap_unlink(const char *path)
{
    return removed(__real_unlink(path), below(path));
}

int __wrap_rmdir(const char *path)
{
    return removed(__real_rmdir(path), below(path));
}

int __wrap_unlinkat(int folder, const char *name, int flags)
{
    char path[2 * PATH];
    int result = __real_unlinkat(folder, name, flags);
    if (path_of(folder) == NULL)
        return result;
    snprintf(path, sizeof path, "%s/%s", path_of(folder), name);
    return removed(result, path);
}

/* ---- the model ---- */

typedef struct node node;

typedef struct content {
    unsigned char *data;
    size_t bytes;
} content;

typedef struct name {
    char text[PATH];
    node *node;
} name;

typedef struct names {
    name *items;
    size_t count;
} names;

/* One step of a folder's names: one or two of them change at once. */
typedef struct step {
    int count;
    name names[2]; /* node NULL: goes */
} step;

struct node {
    bool folder;
    content now, safe;
    names here, kept; /* of a folder: as they are, as they are safe */
    step *steps;      /* from `kept` to `here` */
    size_t step_count;
    node *next_made; /* all nodes, for freeing */
};

static node *all_nodes;

static node *new_node(bool folder)
{
    node *n = calloc(1, sizeof *n);
    n->folder = folder;
    n->next_made = all_nodes;
    all_nodes = n;
    return n;
}

static void free_nodes(void)
{
    while (all_nodes != NULL) {
        node *n = all_nodes;
        all_nodes = n->next_made;
        free(n->now.data);
        free(n->safe.data);
        free(n->here.items);
        free(n->kept.items);
        free(n->steps);
        free(n);
    }
}

static void set_name(names *list, const char *text, node *target)
{
    size_t i = 0;
    while (i < list->count && strcmp(list->items[i].text, text) != 0)
        i++;
    if (target == NULL) {
        if (i < list->count)
            list->items[i] = list->items[--list->count];
        return;
    }
    if (i == list->count) {
        list->items = realloc(list->items, sizeof *list->items * ++list->count);
        snprintf(list->items[i].text, sizeof list->items[i].text, "%s", text);
    }
    list->items[i].node = target;
}

static node *get_name(const names *list, const char *text)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].text, text) == 0)
            return list->items[i].node;
    return NULL;
}

static void copy_names(names *to, const names *from)
{
    free(to->items);
    to->count = from->count;
    to->items = calloc(from->count + 1, sizeof *to->items);
    for (size_t i = 0; i < from->count; i++)
        to->items[i] = from->items[i];
}

/* The folder that a path's last part stands in; `*last` is that part. */
static node *folder_of(node *root, const char *path, char *last)
{
    node *at = root;
    const char *part = path;
    for (const char *slash; (slash = strchr(part, '/')) != NULL; part = slash + 1) {
        char text[PATH];
        snprintf(text, sizeof text, "%.*s", (int)(slash - part), part);
        at = get_name(&at->here, text);
    }
    snprintf(last, PATH, "%s", part);
    return at;
}

static node *find(node *root, const char *path)
{
    char last[PATH];
    if (path[0] == '\0')
        return root;
    node *folder = folder_of(root, path, last);
    return get_name(&folder->here, last);
}

static void take_step(node *folder, const step *s)
{
    for (int i = 0; i < s->count; i++)
        set_name(&folder->here, s->names[i].text, s->names[i].node);
    folder->steps = realloc(folder->steps, sizeof *s * (folder->step_count + 1));
    folder->steps[folder->step_count++] = *s;
}

static void change_names(node *a, const char *first, node *x, node *b, const char *second, node *y)
{
    step s = {.count = 1}, t = {.count = 1};
    snprintf(s.names[0].text, sizeof s.names[0].text, "%s", first);
    s.names[0].node = x;
    snprintf(t.names[0].text, sizeof t.names[0].text, "%s", second);
    t.names[0].node = y;
    if (a == b) {
        s.names[s.count++] = t.names[0];
        take_step(a, &s);
        return;
    }
    take_step(b, &t);
    take_step(a, &s);
}

static void resize(content *c, size_t bytes)
{
    c->data = realloc(c->data, bytes + 1);
    if (bytes > c->bytes)
        memset(c->data + c->bytes, 0, bytes - c->bytes);
    c->bytes = bytes;
}

static void sync_node(node *n)
{
    if (n->folder) {
        copy_names(&n->kept, &n->here);
        n->step_count = 0;
        return;
    }
    resize(&n->safe, n->now.bytes);
    if (n->now.bytes > 0)
        memcpy(n->safe.data, n->now.data, n->now.bytes);
}

static void apply(node *root, const change *c)
{
    char first[PATH], second[PATH];
    node *folder = c->path[0] != '\0' ? folder_of(root, c->path, first) : NULL;
    node *target = find(root, c->path), *other;
    step s = {.count = 1};
    switch (c->kind) {
    case MAKE:
    case FOLDER:
    case REMOVE:
        snprintf(s.names[0].text, sizeof s.names[0].text, "%s", first);
        s.names[0].node = c->kind == REMOVE ? NULL : new_node(c->kind == FOLDER);
        take_step(folder, &s);
        return;
    case WRITE:
        if ((size_t)c->at + c->bytes > target->now.bytes)
            resize(&target->now, (size_t)c->at + c->bytes);
        memcpy(target->now.data + c->at, c->data, c->bytes);
        return;
    case SIZE:
    case GROW:
        if (c->kind == SIZE || (size_t)c->at > target->now.bytes)
            resize(&target->now, (size_t)c->at);
        return;
    case SYNC:
        sync_node(target);
        return;
    case RENAME:
        other = folder_of(root, c->to, second);
        change_names(folder, first, NULL, other, second, target);
        return;
    case EXCHANGE: {
        node *there = find(root, c->to);
        other = folder_of(root, c->to, second);
        change_names(folder, first, there, other, second, target);
        return;
    }
    }
}

/* Reads what is there now, all of it safe. */
static node *load(const char *path)
{
    struct stat about;
    if (lstat(path, &about) != 0)
        abort();
    node *n = new_node(S_ISDIR(about.st_mode));
    if (!n->folder) {
        FILE *file = fopen(path, "r");
        resize(&n->now, (size_t)about.st_size);
        if (fread(n->now.data, 1, n->now.bytes, file) != n->now.bytes)
            abort();
        fclose(file);
        sync_node(n);
        return n;
    }
    DIR *list = opendir(path);
    for (struct dirent *e; (e = readdir(list)) != NULL;) {
        char inside[2 * PATH];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
        set_name(&n->here, e->d_name, load(inside));
    }
    closedir(list);
    sync_node(n);
    return n;
}

/* ---- after the power cut ---- */

static void leave(const node *n, disk_loss loss, uint64_t *random, const char *path);

static void leave_folder(const node *n, disk_loss loss, uint64_t *random, const char *path)
{
    names left = {0};
    size_t steps = loss == DISK_ALL       ? 0
                   : loss == DISK_CONTENT ? n->step_count
                                          : (size_t)random_in(random, 0, (int)n->step_count);
    copy_names(&left, &n->kept);
    for (size_t i = 0; i < steps; i++)
        for (int k = 0; k < n->steps[i].count; k++)
            set_name(&left, n->steps[i].names[k].text, n->steps[i].names[k].node);
    if (__real_mkdir(path, 0777) != 0)
        abort();
    for (size_t i = 0; i < left.count; i++) {
        char inside[2 * PATH];
        snprintf(inside, sizeof inside, "%s/%s", path, left.items[i].text);
        leave(left.items[i].node, loss, random, inside);
    }
    free(left.items);
}

static void leave(const node *n, disk_loss loss, uint64_t *random, const char *path)
{
    if (n->folder) {
        leave_folder(n, loss, random, path);
        return;
    }
    int fate = loss == DISK_SOME ? random_in(random, 0, 2) : 0;
    const content *c = fate == 0 ? &n->safe : &n->now;
    FILE *file = fopen(path, "w");
    for (size_t i = 0; i < c->bytes; i++) {
        bool torn =
            fate == 2 && i >= c->bytes / 2 && (i >= n->safe.bytes || n->safe.data[i] != c->data[i]);
        fputc(torn ? 0 : c->data[i], file);
    }
    fclose(file);
}

static node *start;
static char start_folder[PATH];

static void copy_tree(const char *from, const char *to)
{
    uint64_t none = 0;
    node *n = load(from);
    leave(n, DISK_ALL, &none, to);
    free_nodes();
}

void disk_begin(const char *folder)
{
    disk_forget();
    snprintf(watched, sizeof watched, "%s", folder);
    snprintf(start_folder, sizeof start_folder, "%.400s.before", folder);
    copy_tree(folder, start_folder);
    recording = true;
}

size_t disk_end(void)
{
    recording = false;
    return count;
}

void disk_cut(size_t n, disk_loss loss, uint64_t seed, const char *to)
{
    start = load(start_folder);
    for (size_t i = 0; i < n; i++)
        apply(start, &changes[i]);
    leave(start, loss, &seed, to);
    free_nodes();
}

const char *disk_change(size_t n)
{
    static const char *const kinds[] = {
        "make", "mkdir", "write", "size", "grow", "sync", "rename", "exchange", "remove"};
    static char text[3 * PATH];
    snprintf(
        text, sizeof text, "%s \"%s\" %s", kinds[changes[n].kind], changes[n].path, changes[n].to);
    return text;
}

static size_t number_of(kind a, kind b)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++)
        found += changes[i].kind == a || changes[i].kind == b;
    return found;
}

size_t disk_syncs(void)
{
    return number_of(SYNC, SYNC);
}

size_t disk_renames(void)
{
    return number_of(RENAME, EXCHANGE);
}

void disk_forget(void)
{
    for (size_t i = 0; i < count; i++)
        free(changes[i].data);
    free(changes);
    changes = NULL;
    count = capacity = 0;
    recording = false;
}
