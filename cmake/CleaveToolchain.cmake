# Finds MLIR and LLVM, and sets the flags that every target of the project shares.

find_package(MLIR 22.1 REQUIRED CONFIG)

# Without this, generated documentation is written to the root of the file
# system: the packaged configuration leaves the variable empty.
set(MLIR_BINARY_DIR ${CMAKE_BINARY_DIR})
set(LLVM_RUNTIME_OUTPUT_INTDIR ${CMAKE_BINARY_DIR}/bin)
set(LLVM_LIBRARY_OUTPUT_INTDIR ${CMAKE_BINARY_DIR}/lib)

list(APPEND CMAKE_MODULE_PATH ${MLIR_CMAKE_DIR} ${LLVM_CMAKE_DIR})
include(TableGen)
include(AddLLVM)
include(AddMLIR)

separate_arguments(CLEAVE_LLVM_DEFINITIONS NATIVE_COMMAND ${LLVM_DEFINITIONS})
add_definitions(${CLEAVE_LLVM_DEFINITIONS})
include_directories(SYSTEM ${LLVM_INCLUDE_DIRS} ${MLIR_INCLUDE_DIRS})
include_directories(${CMAKE_SOURCE_DIR}/include ${CMAKE_BINARY_DIR}/include)

# The packages are built with RTTI and without exceptions.
add_compile_options(-Wall -Wextra -Wno-unused-parameter)
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-exceptions>)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  add_link_options(-fuse-ld=lld)
endif()

include(CleaveMlir)

# Installed programs find LLVM where those of the build do.
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

# Every relocation is resolved when the program is linked: a missing
# definition is a build error, not a surprise at run time.
add_link_options(-Wl,-z,defs)
