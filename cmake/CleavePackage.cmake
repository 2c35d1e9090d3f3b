# What `pip install .` builds (target `cleave-package`) and installs (component
# `package`): the extension modules into the package, tools into the folder of
# scripts, the plugin for MPI beside the modules and where tools look for it.

set(tools cleave-compile cleave-run cleave-reference cleave-opt)
add_custom_target(cleave-package DEPENDS ${tools})
if(TARGET _cleave)
  add_dependencies(cleave-package _cleave _runtime)
endif()
if(TARGET cleave_mpi)
  add_dependencies(cleave-package cleave_mpi)
endif()

if(SKBUILD)
  install(TARGETS _cleave _runtime
    LIBRARY DESTINATION cleave COMPONENT package)
  install(TARGETS ${tools}
    RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT package)
  if(TARGET cleave_mpi)
    foreach(folder cleave ${SKBUILD_DATA_DIR}/lib)
      install(TARGETS cleave_mpi
        LIBRARY DESTINATION ${folder} COMPONENT package)
    endforeach()
  endif()
endif()
