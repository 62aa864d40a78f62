# make demo   installs what is missing, builds, runs the main job on the bundled model and prints the A/B table
# make lab    measures speed against quality on the bundled model and leaves a report in build/lab
# make test   installs what is missing, builds, runs every test of the default set
PRESET ?= release
BUILD := build/$(PRESET)

.PHONY: deps deps-format configure build program test demo bench lab pictures aa format lint clean soak browser clients neon install deb

deps:
	@tools/install_deps.sh

deps-format:
	@tools/install_deps.sh clang-format

configure: deps
	@cmake --preset $(PRESET) >/dev/null || cmake --preset $(PRESET)

# with all tests
build: configure
	@cmake --build --preset $(PRESET)

program: configure
	@cmake --build --preset $(PRESET) --target carpool

test: build
	@ctest --preset $(PRESET)

demo: program
	@$(BUILD)/carpool demo

bench: program
	@$(BUILD)/carpool bench membw
	@$(BUILD)/carpool bench decode

# The lab's report on the bundled model: build/lab/index.html and ab.html. Resumes when interrupted.
lab: program
	@tools/lab.sh $(BUILD)/carpool build/lab

# the pictures of README.md and docs, from a finished `make lab`
pictures:
	@cp build/lab/cross_entropy_b16.svg build/lab/moe_time_glm5.svg docs/pictures/

# twenty times `ab vanilla vanilla`: no winner where there is none
aa: build
	@CARPOOL=$(CURDIR)/$(BUILD)/carpool python3 tests/ab_self_check.py

# ten thousand requests, a fifth broken off: no stuck slot, no leaked page (SOAK_REQUESTS=N for fewer)
soak: build
	@CARPOOL=$(CURDIR)/$(BUILD)/carpool python3 tests/serve_soak.py

# the page at / in a headless Chromium, with screenshots in build/screenshots
browser: build
	@CARPOOL=$(CURDIR)/$(BUILD)/carpool python3 tests/page_browser.py

# clients of the server, from PyPI, for tests/clients_test.py
clients:
	@python3 -m venv build/clients
	@build/clients/bin/pip install -q openai 'lm-eval[api]' transformers

# the number formats' tests with the NEON kernels, cross-compiled for 64-bit Arm and run by qemu
neon:
	@tools/install_deps.sh g++-aarch64-linux-gnu qemu-user-static googletest
	@cmake -S tools/neon -B build/neon -G Ninja >/dev/null
	@cmake --build build/neon
	@qemu-aarch64-static build/neon/quant_test --gtest_brief=1

PREFIX ?= /usr/local
install: build
	@cmake --install $(BUILD) --prefix $(PREFIX)

deb: build
	@cd $(BUILD) && cpack -G DEB

format: deps-format
	@git ls-files '*.cc' '*.h' | xargs clang-format -i

lint: deps-format
	@python3 tools/check_layers.py
	@git ls-files '*.cc' '*.h' | xargs clang-format --dry-run --Werror

clean:
	rm -rf build
