# make demo   installs what is missing, builds, runs the main job on the bundled model and prints the A/B table
# make test   installs what is missing, builds, runs every test of the default set
PRESET ?= release
BUILD := build/$(PRESET)

.PHONY: deps build test demo bench format lint clean

deps:
	@tools/install_deps.sh

build: deps
	@cmake --preset $(PRESET) >/dev/null || cmake --preset $(PRESET)
	@cmake --build --preset $(PRESET)

test: build
	@ctest --preset $(PRESET)

demo: build
	@$(BUILD)/carpool demo

bench: build
	@$(BUILD)/carpool bench membw
	@$(BUILD)/carpool bench decode

format:
	@git ls-files '*.cc' '*.h' | xargs clang-format -i

lint: deps
	@python3 tools/check_layers.py
	@git ls-files '*.cc' '*.h' | xargs clang-format --dry-run --Werror

clean:
	rm -rf build
