# Writes OUT: every function of the driver that HEADER, cuda.h, declares, weak,
# so that those of the other files replace it. It is not supported. Libraries
# that open the driver look for all of them.
file(READ ${HEADER} text)
string(REGEX MATCHALL "CUDAAPI[ \n]+cu[A-Z][A-Za-z0-9_]*" declared "${text}")
string(REGEX MATCHALL "cu[A-Z][A-Za-z0-9]*_v[0-9]+" versions "${text}")
string(REGEX MATCHALL "cu[A-Z][A-Za-z0-9]*_pt(sz|ds)" threads "${text}")
list(TRANSFORM declared REPLACE "CUDAAPI[ \n]+" "")
set(names ${declared} ${versions} ${threads})
list(REMOVE_DUPLICATES names)
list(SORT names)
set(result "extern \"C\" __attribute__((visibility(\"default\"))) int
cleave_fake_missing() { return 801; }\n")
foreach(name ${names})
  string(APPEND result "extern \"C\" __attribute__((weak, visibility(\"default\"),
  alias(\"cleave_fake_missing\"))) int ${name}();\n")
endforeach()
file(WRITE ${OUT} "${result}")
