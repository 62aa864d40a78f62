# One static library per folder of src/, one test program per folder.
#
#   carpool_library(NAME [LIGHT [source...]] [DEPS target...])
#
# builds carpool_NAME from src/NAME/*.cc and, when tests are on, NAME_test from src/NAME/*_test.cc.
# The libraries may only name folders that stand above them in docs/ARCHITECTURE.md;
# tools/check_layers.py checks the includes themselves.
include(GoogleTest)
if(CARPOOL_TESTS)
  find_package(GTest REQUIRED)
endif()

add_library(carpool_options INTERFACE)
target_include_directories(carpool_options INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
# A header, not a definition on every command line: a path there would keep compiler caches from being shared.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/carpool/source_dir.h
  CONTENT "#pragma once\n#define CARPOOL_SOURCE_DIR \"@PROJECT_SOURCE_DIR@\"\n" @ONLY)
# No compiler contraction: exact mode promises the same bits for a row whatever the batch, so every
# fused multiply-add is written out. HWY_BROKEN_EMU128=0: the narrow fallback target compiles and is right on x86-64.
# Three targets are enough here (baseline, AVX2, AVX-512) and keep builds short.
target_compile_options(carpool_options INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Werror -ffp-contract=off
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)  # false alarms on string concatenation (GCC PR 105651)
target_compile_definitions(carpool_options INTERFACE
  HWY_BROKEN_EMU128=0
  "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)"
  SPDLOG_FMT_EXTERNAL
  CARPOOL_VERSION="${PROJECT_VERSION}")
target_link_libraries(carpool_options INTERFACE Threads::Threads)

# Most of what is compiled holds no hot loop and gets -O1 (-O0 outside Release): every test, and what a library marks LIGHT
# (all of it, or the sources named).
# GCC's -Wmaybe-uninitialized needs more inlining than that to tell truth from false alarm.
set(CARPOOL_LIGHT $<IF:$<CONFIG:Release>,-O1,-O0> $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)

# Headers that most light files include and that take longer to parse than those files. One precompiled set, made
# for the first light library and shared with the others; one with CLI11 for the command line; one for the tests.
# CMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without, which suits compiler caches better.
set(CARPOOL_COMMON_HEADERS <algorithm> <functional> <map> <memory> <string> <vector> <fmt/format.h> <nlohmann/json.hpp>)
set(CARPOOL_CLI_HEADERS ${CARPOOL_COMMON_HEADERS} <CLI/CLI.hpp>)
set(CARPOOL_TEST_HEADERS ${CARPOOL_COMMON_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)

function(carpool_precompile target set)
  get_property(owner GLOBAL PROPERTY ${set}_OWNER)
  if(owner)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  else()
    target_precompile_headers(${target} PRIVATE ${${set}})
    set_property(GLOBAL PROPERTY ${set}_OWNER ${target})
  endif()
endfunction()

# Light sources are also compiled several at a time, which parses headers and instantiates templates once for all of them. A full
# build takes CARPOOL_UNITY=ON, an incremental one is quicker without. Names in unnamed namespaces of one folder must differ
# then; sources where that would cost clarity are left out with SKIP_UNITY_BUILD_INCLUSION.
option(CARPOOL_UNITY "Compile several light sources at a time" OFF)
function(carpool_unity target batch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${CARPOOL_UNITY} UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

function(carpool_library name)
  cmake_parse_arguments(ARG "" "" "LIGHT;DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cc)
  file(GLOB tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*_test.cc)
  list(REMOVE_ITEM sources ${tests} ${CMAKE_CURRENT_SOURCE_DIR}/${name}/main.cc)
  if(sources)
    add_library(carpool_${name} STATIC ${sources})
    target_link_libraries(carpool_${name} PUBLIC carpool_options ${ARG_DEPS})
    if(ARG_LIGHT)
      list(TRANSFORM ARG_LIGHT REPLACE "(.+)" "${name}/\\1.cc" OUTPUT_VARIABLE light)
      set_property(SOURCE ${light} APPEND PROPERTY COMPILE_OPTIONS ${CARPOOL_LIGHT})
    elseif("LIGHT" IN_LIST ARG_KEYWORDS_MISSING_VALUES)
      target_compile_options(carpool_${name} PRIVATE ${CARPOOL_LIGHT})
      carpool_unity(carpool_${name} 8)
      if("CLI11::CLI11" IN_LIST ARG_DEPS)
        carpool_precompile(carpool_${name} CARPOOL_CLI_HEADERS)
      else()
        carpool_precompile(carpool_${name} CARPOOL_COMMON_HEADERS)
      endif()
    endif()
  else()  # headers only, so far
    add_library(carpool_${name} INTERFACE)
    target_link_libraries(carpool_${name} INTERFACE carpool_options ${ARG_DEPS})
    return()
  endif()
  if(CARPOOL_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE carpool_${name} GTest::gmock GTest::gtest_main)
    target_compile_options(${name}_test PRIVATE ${CARPOOL_LIGHT})
    carpool_unity(${name}_test 4)
    carpool_precompile(${name}_test CARPOOL_TEST_HEADERS)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}." DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS unit TIMEOUT 300)
  endif()
endfunction()
