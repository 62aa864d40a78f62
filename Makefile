# make demo   installs what is missing, builds, runs the main job on the bundled model and prints the A/B table
# make lab    measures speed against quality on the bundled model and leaves a report in build/lab
# make test   installs what is missing, builds, runs every test of the default set
PRESET ?= release
BUILD := build/$(PRESET)

.PHONY: deps deps-format build test demo bench lab format lint clean

deps:
	@tools/install_deps.sh

deps-format:
	@tools/install_deps.sh clang-format

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

# The lab's report on the bundled model: build/lab/index.html and ab.html. Resumes when interrupted.
lab: build
	@mkdir -p build/lab
	@$(BUILD)/carpool sweep --batch 4,16,64 --out build/lab/run --report build/lab
	@$(BUILD)/carpool ab vanilla oea:k0=5 --report build/lab
	@$(BUILD)/carpool plan --shape glm-5 | tee build/lab/plan.txt
	@echo "report: build/lab/index.html"

format: deps-format
	@git ls-files '*.cc' '*.h' | xargs clang-format -i

lint: deps-format
	@python3 tools/check_layers.py
	@git ls-files '*.cc' '*.h' | xargs clang-format --dry-run --Werror

clean:
	rm -rf build
