//===- BigramGenerator.cpp - Writes a program as source -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "Bigram.h"
#include "cleave/Executable/Format/Artifact.h"
#include "cleave/Executable/Format/ProgramIO.h"
#include "llvm/Support/raw_ostream.h"

#include <algorithm>
#include <cstdlib>

/// Prints the C++ source of the symbols that an artifact exports, for as many
/// devices as the argument says.
int main(int argc, char **argv) {
  cleave::test::BigramShape shape;
  shape.devices = argc > 1 ? std::atoi(argv[1]) : 0;
  // A sample of each micro-batch for each device.
  shape.batch = std::max(shape.batch, 2 * shape.devices);
  std::string text = cleave::runtime::toJSON(cleave::test::makeBigram(shape));
  llvm::outs() << "#include <cstdint>\n"
                  "extern \"C\" {\n"
                  "extern const char cleave_program[];\n"
                  "extern const uint64_t cleave_program_size;\n"
                  "extern const uint32_t cleave_abi_version;\n"
                  "const char cleave_program[] = {";
  for (char c : text)
    llvm::outs() << int(c) << ",";
  llvm::outs() << "0};\n"
               << "const uint64_t cleave_program_size = " << text.size()
               << ";\nconst uint32_t cleave_abi_version = "
               << cleave::runtime::kAbiVersion << ";\n}\n";
  return 0;
}
