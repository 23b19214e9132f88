# ddpipe: make [deps|run|test|lint|format|install|clean], see README.md.
#   make SAN=address|undefined|thread …   builds in build/<SAN>/, programs in build/<SAN>/bin
#   make CC=… CFLAGS=… ARCH=native        compiler, its flags, and the machine to build for

VERSION  := 0.1.0
PROGRAMS := fetch prep loader trainer aggregator
B        := build/$(or $(SAN),release)
BIN      := $(if $(SAN),$(B)/bin,bin)
PREFIX   ?= /usr/local
comma    := ,

CC       := gcc
CXX      := g++
CFLAGS   ?= -O3 -g
ARCH     ?= x86-64-v2
WARN     := -Wall -Wextra -Wshadow -Wconversion -Werror -Wno-restrict # misjudges copies within an object (gcc 12)
BOTH     := $(CFLAGS) -march=$(ARCH) -fopenmp -pthread -I. -D_GNU_SOURCE \
            -DDDPIPE_VERSION='"$(VERSION)"' \
            $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer)
LIBS     := -lzmq -lcrypto -ljansson -lm
LIBS_fetch   := -lcurl -larchive
LIBS_prep    := -lpng -lz
LIBS_trainer := -ldnnl -lgloo -lstdc++

CUDA      := $(wildcard trainer/cuda_*.c trainer/cudnn_*.c) trainer/backend_cuda.c trainer/comm_nccl.c
sources   = $(filter-out $(CUDA),$(wildcard $(1)/*.c)) $(wildcard $(1)/*.cc)
objects   = $(patsubst %,$(B)/%.o,$(call sources,$(1)))
ARCHIVES := $(PROGRAMS:%=$(B)/%.a) $(B)/lib.a
TESTS    := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/unit/*.c tests/tools/*.c tests/parity/*.c))

.PHONY: all $(PROGRAMS) tests deps run test lint format install clean
.SECONDARY:

all: $(PROGRAMS)
$(PROGRAMS): %: $(BIN)/%
tests: $(TESTS)

# A program is its main file and the archive of its folder's other files.
$(BIN)/%: $(B)/%.a $(B)/lib.a Makefile
	@mkdir -p $(@D)
	$(CC) $(BOTH) -o $@ $(B)/$*/$*.c.o $(B)/$*.a $(B)/lib.a $(LIBS_$*) $(LIBS)

$(B)/tests/%: tests/%.c $(ARCHIVES) Makefile
	@mkdir -p $(@D)
	$(CC) -std=c11 $(BOTH) $(WARN) -MMD -MP -MF $@.d -o $@ $< $(ARCHIVES) \
	    $(foreach p,$(PROGRAMS),$(LIBS_$(p))) $(LIBS) -lcmocka

# trainer-cuda: where nvcc, cuDNN and NCCL are found. Each of the three is a folder with include and
# lib (or lib64) in it, or pip's "nvidia", whose folders have them.
CUDA_HOME  ?= /usr/local/cuda
CUDNN_HOME ?= $(CUDA_HOME)
NCCL_HOME  ?= $(CUDA_HOME)
NVCC       := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc $(CUDA_HOME)/*/bin/nvcc))
homes       = $(wildcard $(foreach h,$(CUDA_HOME) $(CUDNN_HOME) $(NCCL_HOME),$(h)/$(1) $(h)/*/$(1)))
found       = $(firstword $(call homes,lib/$(1)) $(call homes,lib64/$(1)))
CUDA_LIBS  := $(foreach l,libcudart.so.1[0-9] libcudnn.so.9 libnccl.so.2,$(call found,$(l)))
CUDA_OK    := $(and $(NVCC),$(call homes,include/cudnn.h),$(call homes,include/nccl.h),$(filter 3,$(words $(CUDA_LIBS))))
CUDA_FLAGS := $(addprefix -isystem ,$(sort $(dir $(call homes,include/cudnn.h) $(call homes,include/nccl.h) $(call homes,include/cuda_runtime_api.h))))
CUDA_LINK  := $(CUDA_LIBS) $(addprefix -Xlinker -rpath=,$(sort $(dir $(CUDA_LIBS)))) -lstdc++
CUDA_O     := $(patsubst %,$(B)/%.o,$(CUDA) $(wildcard trainer/*.cu))
$(patsubst %,$(B)/%.o,$(CUDA)): BOTH += $(CUDA_FLAGS)
all: $(if $(CUDA_OK),trainer-cuda)
.PHONY: trainer-cuda
trainer-cuda: $(BIN)/trainer-cuda
$(BIN)/trainer-cuda: $(CUDA_O) $(B)/trainer.a $(B)/lib.a Makefile
	@mkdir -p $(@D)
	$(CC) $(BOTH) -o $@ $(B)/trainer/trainer.c.o $(CUDA_O) $(B)/trainer.a $(B)/lib.a $(LIBS_trainer) $(LIBS) $(CUDA_LINK)

# What tests/gpu/check.sh runs on a GPU.
GPU_TESTS := $(B)/tests/gpu/layers $(B)/tests/gpu/peak
$(GPU_TESTS): $(B)/tests/gpu/%: $(B)/tests/gpu/%.c.o $(B)/tests/gpu/twin.c.o $(B)/tests/gpu/bounds.c.o $(CUDA_O) $(B)/trainer.a $(B)/lib.a
	$(CC) $(BOTH) -o $@ $^ $(LIBS_trainer) $(LIBS) $(CUDA_LINK)
$(patsubst %,$(B)/tests/gpu/%.c.o,layers peak twin bounds): BOTH += $(CUDA_FLAGS)

# Their tests that need no GPU: cuDNN's plans, with a stub for the driver.
CUDNN := $(patsubst %,$(B)/%.o,$(wildcard trainer/cudnn_*.c))
tests: $(if $(CUDA_OK),$(B)/tests/gpu/plans $(B)/tests/gpu/libcuda.so.1 $(GPU_TESTS))
$(B)/tests/gpu/plans: tests/gpu/plans.c $(CUDNN) $(ARCHIVES) Makefile
	@mkdir -p $(@D)
	$(CC) -std=c11 $(BOTH) $(CUDA_FLAGS) $(WARN) -MMD -MF $@.d -o $@ $< $(CUDNN) $(B)/trainer.a $(B)/lib.a \
	    $(CUDA_LINK) $(LIBS)
$(B)/tests/gpu/libcuda.so.1: tests/gpu/libcuda_stub.c Makefile
	@mkdir -p $(@D)
	$(CC) -std=c11 $(CFLAGS) $(WARN) -shared -fPIC -Wl,-soname,$(@F) -o $@ $<

define archive
$(B)/$(1).a: $(call objects,$(1))
	@rm -f $$@
	ar rcs $$@ $(filter-out $(B)/$(1)/$(1).c.o,$(call objects,$(1)))
endef
$(foreach a,$(PROGRAMS) lib,$(eval $(call archive,$(a))))

$(B)/%.c.o: %.c Makefile | $(B)/deps.ok
	@mkdir -p $(@D)
	$(CC) -std=c11 $(BOTH) $(WARN) -MMD -MP -c -o $@ $<
$(B)/%.cc.o: %.cc Makefile | $(B)/deps.ok
	@mkdir -p $(@D)
	$(CXX) -std=c++17 $(BOTH) -Wall -Wextra -Werror -MMD -MP -c -o $@ $<

# CUDA kernels: for devices of compute capability 8.0, 9.0 and later where nvcc is found; always, as
# C++ that runs on the CPU, for their tests.
NVCCFLAGS  := -std=c++17 -O3 -lineinfo -I. -gencode arch=compute_80,code=sm_80 \
              -gencode arch=compute_90,code=[sm_90,compute_90] -Werror all-warnings \
              -Xcompiler -Wall,-Wextra,-Werror,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics
CUDA_TESTS := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/cuda/test_*.c))
CUDA_CPU   := $(patsubst %,$(B)/cpu/%.o,$(wildcard trainer/*.cu tests/cuda/*.cu)) \
              $(patsubst %,$(B)/%.o,$(wildcard tests/cuda/*.cc) $(filter-out tests/cuda/test_%,$(wildcard tests/cuda/*.c)))

tests: $(CUDA_TESTS)
$(B)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -MMD -MF $(@:.o=.d) -c -o $@ $<
$(B)/cpu/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(CXX) -std=c++17 $(BOTH) -Wall -Wextra -Werror -include tests/cuda/cuda_cpu.h -MMD -MP -c -o $@ -x c++ $<
$(CUDA_TESTS): $(B)/tests/%: $(B)/tests/%.c.o $(CUDA_CPU) $(ARCHIVES)
	$(CC) $(BOTH) -o $@ $^ $(LIBS_trainer) $(LIBS) -lcmocka
# The CUDA backend on the CPU, for its tests: the runtime, cuDNN and NCCL are stood in for, kernels run
# as above. Needs no CUDA.
STANDIN   := $(B)/standin
STANDIN_O := $(patsubst %,$(STANDIN)/%.o,$(CUDA) $(wildcard tests/standin/*.cc)) \
             $(patsubst %,$(B)/cpu/%.o,$(wildcard trainer/*.cu)) $(B)/tests/cuda/cuda_cpu.cc.o
STANDIN_T := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/standin/test_*.c))
STANDIN_L := $(patsubst %,-Wl$(comma)--wrap=%,$(shell cat tests/standin/wrap.txt)) $(B)/trainer.a $(B)/lib.a $(LIBS_trainer) $(LIBS)
tests: $(B)/tests/standin/trainer-cuda $(B)/tests/standin/layers $(STANDIN_T)
$(STANDIN)/%.c.o: %.c Makefile | $(B)/deps.ok
	@mkdir -p $(@D)
	$(CC) -std=c11 $(BOTH) -Itests/standin/include $(WARN) -MMD -MP -c -o $@ $<
$(STANDIN)/%.cc.o: %.cc Makefile | $(B)/deps.ok
	@mkdir -p $(@D)
	$(CXX) -std=c++17 $(BOTH) -Itests/standin/include -Wall -Wextra -Werror -MMD -MP -c -o $@ $<
$(B)/tests/standin/trainer-cuda: $(B)/trainer/trainer.c.o $(STANDIN_O) $(B)/trainer.a $(B)/lib.a tests/standin/wrap.txt
	@mkdir -p $(@D)
	$(CC) $(BOTH) -o $@ $(filter %.o,$^) $(STANDIN_L)
$(STANDIN_T): $(B)/tests/standin/%: $(STANDIN)/tests/standin/%.c.o $(STANDIN)/tests/standin/fixture.c.o $(STANDIN_O) $(B)/trainer.a $(B)/lib.a tests/standin/wrap.txt
	@mkdir -p $(@D)
	$(CC) $(BOTH) -o $@ $(filter %.o,$^) $(STANDIN_L) -lcmocka
$(B)/tests/standin/layers: $(patsubst %,$(STANDIN)/tests/gpu/%.c.o,layers twin bounds) $(STANDIN_O) $(B)/trainer.a $(B)/lib.a tests/standin/wrap.txt
	@mkdir -p $(@D)
	$(CC) $(BOTH) -o $@ $(filter %.o,$^) $(STANDIN_L)
-include $(shell find $(B) -name '*.d' 2>/dev/null)

# What is missing is named with its package; nothing is guessed.
$(B)/deps.ok:
	@jobs/deps.sh check build && mkdir -p $(@D) && touch $@
deps:
	jobs/deps.sh install build run test

# The main job: the quick recipe, or MODEL=vgg11, MODEL=wideresnet WIDTH=…; more options in OPTS.
run:
	@jobs/deps.sh check build run 2>/dev/null || jobs/deps.sh install build run
	@$(MAKE) --no-print-directory all
	jobs/run_pipeline.sh --recipe $(or $(MODEL),quick) $(if $(WIDTH),--width $(WIDTH)) $(OPTS)

test:
	@jobs/deps.sh check build run test 2>/dev/null || jobs/deps.sh install build run test
	@$(MAKE) --no-print-directory all tests
	BIN=$(abspath $(BIN)) TESTBIN=$(abspath $(B)/tests) tests/run.sh $(SUITES)

lint: all
	B=$(B) tests/lint.sh
format:
	clang-format -i $(shell git ls-files '*.c' '*.h' '*.cc' '*.cu')

install: all
	install -d $(DESTDIR)$(PREFIX)/libexec/ddpipe/bin $(DESTDIR)$(PREFIX)/libexec/ddpipe/jobs $(DESTDIR)$(PREFIX)/bin
	install -m755 $(PROGRAMS:%=$(BIN)/%) $(DESTDIR)$(PREFIX)/libexec/ddpipe/bin
	cp -R jobs/. $(DESTDIR)$(PREFIX)/libexec/ddpipe/jobs
	ln -sf ../libexec/ddpipe/jobs/run_pipeline.sh $(DESTDIR)$(PREFIX)/bin/ddpipe
clean:
	rm -rf build $(PROGRAMS:%=bin/%) bin/trainer-cuda
