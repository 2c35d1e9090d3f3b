# Builds (target `cleave-package`) and installs for `pip install .` (component
# `package`), all of it into the folder of the package: the extension modules, the
# plugins for GPUs and for MPI beside them, and cleave-run in `bin`. The commands
# of the other tools are Python's (cleave/tools.py).

set(plugins)
foreach(plugin cleave_cuda cleave_mpi)
  if(TARGET ${plugin})
    list(APPEND plugins ${plugin})
  endif()
endforeach()
add_custom_target(cleave-package DEPENDS cleave-run ${plugins})
if(NOT TARGET _cleave)
  return()
endif()
add_dependencies(cleave-package _cleave _runtime)

# `cmake --install BUILD --component package --prefix FOLDER` lists and installs
# the same.
install(TARGETS _cleave _runtime ${plugins}
  LIBRARY DESTINATION cleave COMPONENT package)
install(TARGETS cleave-run RUNTIME DESTINATION cleave/bin COMPONENT package)
if(NOT CLEAVE_STATIC_LLVM)
  return()
endif()

# A wheel for machines that have none of the libraries: oneDNN and the OpenMP
# runtime come with it, in `libs`. Where PyTorch has an OpenMP runtime of its own,
# that one comes first, so that a process has one team of threads.
set(torch torch/lib)
set_target_properties(_cleave _runtime PROPERTIES
  INSTALL_RPATH "$ORIGIN/../${torch}:$ORIGIN/libs"
  INSTALL_RPATH_USE_LINK_PATH OFF)
set_target_properties(cleave-run PROPERTIES
  INSTALL_RPATH "$ORIGIN/../../${torch}:$ORIGIN/../libs"
  INSTALL_RPATH_USE_LINK_PATH OFF)
set_target_properties(${plugins} PROPERTIES INSTALL_RPATH_USE_LINK_PATH OFF)
file(REAL_PATH ${CLEAVE_GOMP_LIBRARY} gomp)
install(FILES ${CLEAVE_DNNL_FILE} RENAME ${CLEAVE_DNNL_SONAME}
  DESTINATION cleave/libs COMPONENT package)
install(FILES ${gomp} RENAME libgomp.so.1
  DESTINATION cleave/libs COMPONENT package)

# The notices of what the wheel has in it.
foreach(part llvm-22-dev libdnnl2 libgomp1 ocl-icd-libopencl1 zlib1g-dev
             libzstd-dev)
  install(FILES /usr/share/doc/${part}/copyright RENAME ${part}.txt
    DESTINATION cleave/licenses COMPONENT package)
endforeach()
file(GLOB notice ${nanobind_DIR}/../../nanobind-*.dist-info/licenses/LICENSE)
if(NOT notice)
  message(FATAL_ERROR "the license of nanobind is not beside ${nanobind_DIR}")
endif()
install(FILES ${notice} RENAME nanobind.txt
  DESTINATION cleave/licenses COMPONENT package)
if(CLEAVE_CUDNN)
  file(GLOB notice ${CLEAVE_CUDNN_FRONTEND_INCLUDE}/../nvidia_cudnn_frontend-*.dist-info/licenses/LICENSE.txt)
  install(FILES ${notice} RENAME cudnn-frontend.txt
    DESTINATION cleave/licenses COMPONENT package)
endif()
install(FILES ${CMAKE_CURRENT_LIST_DIR}/THIRD-PARTY-NOTICES.md RENAME README.md
  DESTINATION cleave/licenses COMPONENT package)
