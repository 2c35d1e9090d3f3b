# CleaveMlir: MLIR, LLVM and LLD, as the libraries of the compiler and what links
# them use them. Shared, one copy serves all programs of a build; with
# CLEAVE_STATIC_LLVM each has its own, of the parts that it uses, and runs on
# machines without LLVM. CleaveLld is the linker as a library, which has no shared
# one.

add_library(CleaveLld INTERFACE)
target_include_directories(CleaveLld SYSTEM INTERFACE ${LLVM_INCLUDE_DIRS})
foreach(part ELF Common)
  find_library(CLEAVE_LLD_${part} lld${part} PATHS ${LLVM_LIBRARY_DIR}
    NO_DEFAULT_PATH REQUIRED)
  target_link_libraries(CleaveLld INTERFACE ${CLEAVE_LLD_${part}})
endforeach()
# The compression that LLVM and the linker use, as a library of the same kind.
set(compression)
foreach(library z zstd)
  set(name ${library})
  if(CLEAVE_STATIC_LLVM)
    set(name lib${library}.a)
  endif()
  find_library(CLEAVE_COMPRESSION_${name} ${name} REQUIRED)
  list(APPEND compression ${CLEAVE_COMPRESSION_${name}})
endforeach()

add_library(CleaveMlir INTERFACE)
if(NOT CLEAVE_STATIC_LLVM)
  target_link_libraries(CleaveMlir INTERFACE MLIR LLVM)
  target_link_libraries(CleaveLld INTERFACE LLVM ${compression})
  return()
endif()

if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "CLEAVE_STATIC_LLVM needs ld.lld, and so clang: archives "
    "are listed in no order")
endif()

# The linker initialises each target of LLVM, and so would link all of them. An
# artifact is code of this machine, which CodeGen.cpp initialises: the
# initialisers of the others do nothing.
set(initialisers)
foreach(target ${LLVM_TARGETS_TO_BUILD})
  if(NOT target STREQUAL LLVM_NATIVE_ARCH)
    foreach(part TargetInfo Target TargetMC AsmPrinter AsmParser)
      string(APPEND initialisers
        "extern \"C\" void LLVMInitialize${target}${part}() {}\n")
    endforeach()
  endif()
endforeach()
configure_file(${CMAKE_CURRENT_LIST_DIR}/UnusedParts.cpp.in
  ${CMAKE_BINARY_DIR}/UnusedParts.cpp @ONLY)
add_library(CleaveUnusedParts OBJECT ${CMAKE_BINARY_DIR}/UnusedParts.cpp)

file(GLOB archives ${LLVM_LIBRARY_DIR}/libMLIR*.a ${LLVM_LIBRARY_DIR}/libLLVM*.a)
target_link_libraries(CleaveMlir INTERFACE $<TARGET_OBJECTS:CleaveUnusedParts>
  ${archives} ${compression} ${CMAKE_DL_LIBS})
target_link_options(CleaveMlir INTERFACE -Wl,--as-needed -Wl,--exclude-libs,ALL
  -Wl,--gc-sections)
