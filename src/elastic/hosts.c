/* The file of hosts, and the dealing of ranks to them. */
#include "elastic/hosts.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"

#define MOST_BYTES (1 << 20) /* of a file */
#define MOST_SLOTS 65536

bool rs_host_is(const char *name, const char *other)
{
    size_t a = strcspn(name, "."), b = strcspn(other, ".");
    if (name[a] != '\0' && other[b] != '\0')
        return strcmp(name, other) == 0;
    return a == b && memcmp(name, other, a) == 0;
}

bool rs_host_is_here(const char *name)
{
    char own[RS_HOST_NAME] = "";
    gethostname(own, sizeof own - 1);
    return rs_host_is(name, own) || strcmp(name, "localhost") == 0;
}

static rs_status complain(const char *path, int line, const char *word)
{
    return rs_error_set(RS_ERR_MALFORMED,
        "%s: line %d: wanted a host's name, then slots=N or :N, found '%.60s'", path, line, word);
}

/* A number of slots, all of `text`. */
static bool parse_slots(const char *text, int *slots)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    long value = strtol(text, &end, 10);
    *slots = (int)value;
    return *end == '\0' && value >= 0 && value <= MOST_SLOTS;
}

/* A host's name is handed to a remote shell's command line, so it is nothing but a name. */
static bool is_name(const char *text)
{
    size_t length = strlen(text);
    bool good = length > 0 && length < RS_HOST_NAME && text[0] != '-';
    for (size_t i = 0; i < length && good; i++)
        good = isalnum((unsigned char)text[i]) || strchr(".-_", text[i]) != NULL;
    return good;
}

static rs_status add(rs_hosts *hosts, const char *name, int slots, const char *path)
{
    for (int h = 0; h < hosts->count; h++) {
        if (!rs_host_is(hosts->items[h].name, name))
            continue;
        hosts->items[h].slots += slots;
        return hosts->items[h].slots <= MOST_SLOTS
                   ? RS_OK
                   : rs_error_set(RS_ERR_MALFORMED, "%s: host %s has more than %d slots", path,
                         name, MOST_SLOTS);
    }
    if (hosts->count == RS_HOSTS)
        return rs_error_set(RS_ERR_MALFORMED, "%s: more than %d hosts", path, RS_HOSTS);
    rs_host *host = &hosts->items[hosts->count++];
    snprintf(host->name, sizeof host->name, "%s", name);
    host->slots = slots;
    return RS_OK;
}

static rs_status parse_line(char *line, const char *path, int number, rs_hosts *hosts)
{
    char *rest;
    int slots = 1;
    line[strcspn(line, "#")] = '\0';
    char *name = strtok_r(line, " \t\r", &rest);
    if (name == NULL)
        return RS_OK;
    char *colon = strchr(name, ':');
    if (colon != NULL) {
        *colon = '\0';
        if (!parse_slots(colon + 1, &slots))
            return complain(path, number, colon + 1);
    }
    if (!is_name(name))
        return complain(path, number, name);
    for (char *word; (word = strtok_r(NULL, " \t\r", &rest)) != NULL;) {
        int most;
        if (strncmp(word, "max_slots=", 10) == 0 || strncmp(word, "max-slots=", 10) == 0) {
            if (!parse_slots(word + 10, &most))
                return complain(path, number, word);
        } else if (strncmp(word, "slots=", 6) != 0 || !parse_slots(word + 6, &slots)) {
            return complain(path, number, word);
        }
    }
    return add(hosts, name, slots, path);
}

rs_status rs_hosts_parse(const char *text, const char *path, rs_hosts *out)
{
    rs_hosts hosts = {.count = 0};
    char line[1024];
    for (int number = 1; *text != '\0'; number++) {
        size_t length = strcspn(text, "\n");
        if (length >= sizeof line)
            return rs_error_set(RS_ERR_MALFORMED, "%s: line %d is too long", path, number);
        memcpy(line, text, length);
        line[length] = '\0';
        RS_TRY(parse_line(line, path, number, &hosts));
        text += length + (text[length] == '\n');
    }
    if (hosts.count == 0)
        return rs_error_set(RS_ERR_MALFORMED, "%s: it names no host", path);
    *out = hosts;
    return RS_OK;
}

rs_status rs_hosts_read(const char *path, rs_hosts *out)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return rs_error_errno(errno, "%s", path);
    rs_status status = RS_OK;
    char *text = rs_calloc(1, MOST_BYTES + 1);
    size_t count = text != NULL ? fread(text, 1, MOST_BYTES, file) : 0;
    if (text == NULL)
        status = rs_error_memory(MOST_BYTES);
    else if (ferror(file))
        status = rs_error_errno(errno, "%s", path);
    else if (count == MOST_BYTES || strlen(text) != count)
        status = rs_error_set(RS_ERR_MALFORMED, "%s: not a file of hosts", path);
    if (status == RS_OK)
        status = rs_hosts_parse(text, path, out);
    free(text);
    fclose(file);
    return status;
}

int rs_hosts_slots(const rs_hosts *hosts)
{
    int slots = 0;
    for (int h = 0; h < hosts->count; h++)
        slots += hosts->items[h].slots;
    return slots;
}

rs_status rs_hosts_place(const rs_hosts *hosts, int ranks, const int *near, int *out)
{
    int left[RS_HOSTS], next = 0;
    if (ranks > rs_hosts_slots(hosts))
        return rs_error_set(RS_ERR_BUDGET, "%d ranks are wanted, and the hosts have %d slots",
            ranks, rs_hosts_slots(hosts));
    for (int h = 0; h < hosts->count; h++)
        left[h] = hosts->items[h].slots;
    for (int r = 0; r < ranks; r++) {
        int host = near != NULL ? near[r] : -1;
        bool fits = host >= 0 && host < hosts->count && left[host] > 0;
        out[r] = fits ? host : -1;
        if (fits)
            left[host]--;
    }
    for (int r = 0; r < ranks; r++) {
        if (out[r] >= 0)
            continue;
        while (left[next] == 0)
            next++;
        out[r] = next;
        left[next]--;
    }
    return RS_OK;
}
