# One way to declare a library, a tool and a table of generated code.

# All code that TableGen generates. Every library is compiled after it: headers
# include headers of other folders, so lists for each library would go stale
# and fail only in a cold build.
add_custom_target(CleaveTableGen)

# Headers that most sources of a library read are parsed once, by level: a library
# names the level whose headers nearly all of its sources include anyway. A source
# still includes what it uses; a build with CMAKE_DISABLE_PRECOMPILE_HEADERS shows
# it.
#
#   Plain    the C++ library and LLVM's Support
#   Mlir     MLIR
#   Graph    MLIR and the graph dialect
#   Spmd     Graph and the spmd dialect
#   Pipe     Spmd and the pipe dialect
#   Exec     Spmd and the exec dialect
#   Runtime  Plain, optimised
#   Tests    Exec and GoogleTest; PlainTests: Plain and GoogleTest
function(cleave_add_pch level)
  add_library(Cleave${level}PCH OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch/pch.cpp)
  target_precompile_headers(Cleave${level}PCH PRIVATE
    ${CMAKE_SOURCE_DIR}/cmake/pch/${level}.h)
  target_compile_options(Cleave${level}PCH PRIVATE ${ARGN})
endfunction()

cleave_add_pch(Plain)
cleave_add_pch(Runtime -O3)
cleave_add_pch(Mlir)
foreach(level Graph Spmd Pipe Exec)
  cleave_add_pch(${level})
  add_dependencies(Cleave${level}PCH CleaveTableGen)
endforeach()

# cleave_add_library(Name SOURCES a.cpp ... [LINK l ...] [PCH level])
#
# A static library of the compiler. It and what links it get MLIR and LLVM by
# CleaveMlir alone: naming a component's archive beside the shared libraries
# would duplicate TypeIDs.
function(cleave_add_library name)
  cmake_parse_arguments(ARG "" "PCH" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  add_dependencies(${name} CleaveTableGen)
  target_link_libraries(${name} PUBLIC ${ARG_LINK} CleaveMlir)
  if(NOT ARG_PCH)
    set(ARG_PCH Mlir)
  endif()
  target_precompile_headers(${name} REUSE_FROM Cleave${ARG_PCH}PCH)
endfunction()

# cleave_add_runtime_library(Name SOURCES a.cpp ... [LINK l ...])
#
# What runs without the compiler: of LLVM only the support library, nothing of MLIR.
# Optimised in every build type: its loops are part of every step.
function(cleave_add_runtime_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE -O3)
  target_link_libraries(${name} PUBLIC ${ARG_LINK})
  target_precompile_headers(${name} REUSE_FROM CleaveRuntimePCH)
endfunction()

# cleave_add_tool(name SOURCES a.cpp ... LINK l ... [PCH level])
function(cleave_add_tool name)
  cmake_parse_arguments(ARG "" "PCH" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} CleaveMlir)
  # A precompiled header serves only code compiled alike: libraries are
  # -fPIC, so programs are too, not -fPIE.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name} PRIVATE -fPIC)
  if(NOT ARG_PCH)
    set(ARG_PCH Mlir)
  endif()
  target_precompile_headers(${name} REUSE_FROM Cleave${ARG_PCH}PCH)
endfunction()

# cleave_tablegen(target file.td out.inc -gen-... out2.inc -gen-... ...)
function(cleave_tablegen target td)
  set(LLVM_TARGET_DEFINITIONS ${td})
  set(pairs ${ARGN})
  while(pairs)
    list(POP_FRONT pairs out)
    list(POP_FRONT pairs spec)
    separate_arguments(spec)
    mlir_tablegen(${out} ${spec})
  endwhile()
  add_public_tablegen_target(${target})
  add_dependencies(CleaveTableGen ${target})
endfunction()
