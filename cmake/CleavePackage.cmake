# What `pip install .` builds (target `cleave-package`) and installs (component
# `package`): the extension modules into the package, tools into the folder of
# scripts, the plugins for GPUs and for MPI beside the modules and where tools
# look for them.

set(tools cleave-compile cleave-run cleave-reference cleave-opt)
set(plugins)
foreach(plugin cleave_cuda cleave_mpi)
  if(TARGET ${plugin})
    list(APPEND plugins ${plugin})
  endif()
endforeach()
add_custom_target(cleave-package DEPENDS ${tools} ${plugins})
if(TARGET _cleave)
  add_dependencies(cleave-package _cleave _runtime)
endif()

# Outside of a wheel, `cmake --install BUILD --component package --prefix FOLDER`
# lists and installs the same.
if(NOT SKBUILD)
  set(SKBUILD_SCRIPTS_DIR bin)
  set(SKBUILD_DATA_DIR .)
endif()
if(TARGET _cleave)
  install(TARGETS _cleave _runtime
    LIBRARY DESTINATION cleave COMPONENT package)
endif()
install(TARGETS ${tools}
  RUNTIME DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT package)
foreach(folder cleave ${SKBUILD_DATA_DIR}/lib)
  install(TARGETS ${plugins}
    LIBRARY DESTINATION ${folder} COMPONENT package)
endforeach()
