//===- OpenText.h - Opens what a user names ---------------------*- C++ -*-===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#ifndef CLEAVE_SUPPORT_OPENTEXT_H
#define CLEAVE_SUPPORT_OPENTEXT_H

#include "mlir/Support/FileUtilities.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/MemoryBuffer.h"
#include <memory>
#include <string>
#include <sys/stat.h>

namespace cleave {

/// Opens a file or a pipe that a user names, or standard input, whose name is
/// `-`. A device, which may have no end, is an error. Null, with a message that
/// names the file, on an error.
inline std::unique_ptr<llvm::MemoryBuffer> openText(llvm::StringRef path,
                                                    std::string *error) {
  struct stat facts;
  if (path != "-" && ::stat(path.str().c_str(), &facts) == 0 &&
      (S_ISCHR(facts.st_mode) || S_ISBLK(facts.st_mode))) {
    *error = ("cannot open input file '" + path +
              "': it is a device, which may have no end")
                 .str();
    return nullptr;
  }
  return mlir::openInputFile(path, error);
}

} // namespace cleave

#endif // CLEAVE_SUPPORT_OPENTEXT_H
