/* A driver without a device, for tests on machines that have none: libraries that open the driver find it, and cuDNN then
   builds plans for a described device. It runs nothing. It must never lie where a real driver is looked for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

enum { OK = 0, NO_DEVICE = 100, NOT_FOUND = 500 };

static int none(void) { return NO_DEVICE; }

int cuInit(unsigned flags) { return OK; }
int cuDriverGetVersion(int *version) { *version = 13000; return OK; }
int cuDeviceGetCount(int *count) { *count = 0; return NO_DEVICE; }
int cuGetErrorString(int error, const char **text) { *text = "no device"; return OK; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return OK; }

/* What the building of a plan asks of a kernel that was just compiled. */
int cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned n, void *c, void *d, unsigned m) { *library = (void *)0x10; return OK; }
int cuLibraryUnload(void *library) { return OK; }
int cuLibraryGetKernel(void **kernel, void *library, const char *name) { *kernel = (void *)0x20; return OK; }
int cuLibraryGetModule(void **module, void *library) { *module = (void *)0x30; return OK; }
int cuKernelGetFunction(void **function, void *kernel) { *function = (void *)0x40; return OK; }
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device) { return OK; }
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) { *value = 0; return OK; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return OK; }
int cuModuleLoadData(void **module, const void *code) { *module = (void *)0x30; return OK; }
int cuModuleLoadDataEx(void **module, const void *code, unsigned n, void *options, void *values) { *module = (void *)0x30; return OK; }
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = (void *)0x40; return OK; }
int cuModuleUnload(void *module) { return OK; }

/* What is asked for by name, and never runs. */
#define ABSENT(name) int name(void) { return NO_DEVICE; }
ABSENT(cuCtxGetCurrent) ABSENT(cuCtxGetLimit) ABSENT(cuCtxPopCurrent) ABSENT(cuCtxPushCurrent) ABSENT(cuStreamGetCtx)
ABSENT(cuLinkCreate) ABSENT(cuLinkAddData) ABSENT(cuLinkComplete) ABSENT(cuLinkDestroy)
ABSENT(cuLaunchKernel) ABSENT(cuLaunchKernelEx) ABSENT(cuLaunchCooperativeKernel) ABSENT(cuDeviceGet)
ABSENT(cuGetExportTable) ABSENT(cuStreamGetGreenCtx) ABSENT(cuLibraryLoadFromFile) ABSENT(cuOccupancyMaxPotentialClusterSize)

/* Everything else is there and says the same. */
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long flags, int *status) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (!*function) *function = (void *)none;
  if (status) *status = 0;
  return OK;
}
int cuGetProcAddress(const char *name, void **function, int version, unsigned long flags) { return cuGetProcAddress_v2(name, function, version, flags, NULL); }
