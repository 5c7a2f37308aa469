/* Version of the library, at compile time and at run time. */
#ifndef RESHARD_VERSION_H
#define RESHARD_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

#define RS_VERSION_MAJOR 0
#define RS_VERSION_MINOR 1
#define RS_VERSION_PATCH 0
#define RS_VERSION "0.1.0"

/* The version of the library that is linked, "major.minor.patch". Local. */
const char *rs_version(void);

#ifdef __cplusplus
}
#endif

#endif
