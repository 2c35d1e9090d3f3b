//===- CommandKernels.cpp - Kernels of the other commands -----------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "CommandKernels.h"
#include "CommandKernels.inc"
#include "cleave/Executable/Cuda/CollectivePlan.h"
#include "cleave/Executable/Cuda/KernelArguments.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

#include <set>

using namespace llvm;

/// A file without the comments at its head, which are for those who read it
/// there.
static StringRef bodyOf(StringRef file) {
  while (file.starts_with("//") || file.starts_with("\n"))
    file = file.split('\n').second;
  return file;
}

/// The names of the kernels that commands launch.
static std::set<std::string> symbolsOf(ArrayRef<cleave::runtime::Program> all) {
  std::set<std::string> symbols;
  for (const cleave::runtime::Program &program : all)
    for (const cleave::runtime::Part &part : program.parts)
      for (const cleave::runtime::Command &command : part.commands) {
        // Where buffers begin decides the widths of copies: any is allowed for.
        auto at = [](const cleave::runtime::Ref &) {
          return uint64_t(1) << 20;
        };
        if (command.kind == cleave::runtime::CommandKind::Collective) {
          const cleave::runtime::CollectiveCommand &c = command.collective;
          // Only the root of a reduction unpacks.
          auto plan =
              cleave::runtime::cuda::planCollective(c, {c.root, at, 1 << 20});
          if (!plan) {
            consumeError(plan.takeError());
            continue;
          }
          for (const auto *launches : {&plan->before, &plan->after})
            for (const cleave::runtime::cuda::Launch &launch : *launches)
              symbols.insert(launch.symbol);
          symbols.insert(cleave::runtime::cuda::reductionSymbol(c));
          continue;
        }
        auto launches = cleave::runtime::cuda::planLaunches(command, {at});
        if (!launches) {
          // The device says so when it prepares the command.
          consumeError(launches.takeError());
          continue;
        }
        for (const cleave::runtime::cuda::Launch &launch : *launches)
          symbols.insert(launch.symbol);
      }
  return symbols;
}

/// The kernels of attention that are used, of the templates of their files: for
/// each class of head sizes there are four.
static std::string attentionKernels(const std::set<std::string> &symbols) {
  std::string text;
  raw_string_ostream os(text);
  auto add = [&](StringRef kind, StringRef function, int size,
                 std::initializer_list<int> shape) {
    std::string symbol = formatv("cleave_attention_{0}_{1}", kind, size);
    if (!symbols.count(symbol))
      return;
    // As in the files: ptxas would spill to fit a third block of f32.
    bool alone = !function.contains('<') && kind == "keys" && size > 128;
    os << "extern \"C\" __global__ void __launch_bounds__(attentionThreads, "
       << (alone ? 1 : 2) << ")\n"
       << symbol << "(AttentionArguments a) {\n  " << function
       << (function.contains('<') ? ", " : "<") << size;
    for (int number : shape)
      os << ", " << number;
    os << ">(a);\n}\n\n";
  };
#define CLEAVE_KERNELS(Size, FR, FC, QR, QC, QS, KR, KC, KS)                   \
  add("forward", "attentionForward", Size, {FR, FC});                          \
  add("queries", "attentionQueries", Size, {QR, QC, QS});                      \
  add("keys", "attentionKeys", Size, {KR, KC, KS});                            \
  add("bias", "attentionBias", Size, {QR, QC, QS});
  CLEAVE_ATTENTION_CLASSES(CLEAVE_KERNELS)
#undef CLEAVE_KERNELS
  // Those of 16-bit heads begin with the type.
  auto add16 = [&](const char *kind, const char *function, int size,
                   std::initializer_list<int> shape) {
    add((Twine(kind) + "_bf16").str(), (Twine(function) + "<Bfloat16").str(),
        size, shape);
    add((Twine(kind) + "_f16").str(), (Twine(function) + "<Float16").str(),
        size, shape);
  };
#define CLEAVE_KERNELS(Size, F, Q, B, K, Twice)                                \
  add16("forward", "attentionForward16", Size, {F});                           \
  add16("queries", "attentionQueries16", Size, {Q});                           \
  add16("keys", "attentionKeys16", Size, {K, Twice});                          \
  add16("bias", "attentionBias16", Size, {B});
  CLEAVE_ATTENTION16_CLASSES(CLEAVE_KERNELS)
#undef CLEAVE_KERNELS
  return text;
}

/// The reductions over ranks that are used.
static std::string reductionKernels(const std::set<std::string> &symbols) {
  std::string text;
  raw_string_ostream os(text);
  static constexpr std::pair<const char *, const char *> types[] = {
      {"f64", "PlainElement<double>"},
      {"f32", "PlainElement<float>"},
      {"f16", "HalfElement"},
      {"bf16", "BrainElement"},
      {"i64", "PlainElement<long long>"},
      {"i32", "PlainElement<int>"},
      {"i8", "PlainElement<signed char>"},
      {"i1", "PlainElement<unsigned char>"}};
  static constexpr std::pair<const char *, const char *> operations[] = {
      {"sum", "CombineSum"}, {"max", "CombineMax"}, {"min", "CombineMin"}};
  for (auto [type, element] : types)
    for (auto [operation, combine] : operations) {
      std::string symbol = formatv("cleave_reduce_{0}_{1}", type, operation);
      if (symbols.count(symbol))
        os << "extern \"C\" __global__ void __launch_bounds__(256)\n    "
           << symbol << "(ReduceArguments a) {\n  reduceMembers<" << element
           << ", " << combine << ">(a);\n}\n\n";
    }
  return text;
}

std::string
cleave::cuda::commandKernels(ArrayRef<cleave::runtime::Program> programs) {
  std::set<std::string> symbols = symbolsOf(programs);
  std::string text;
  auto add = [&](StringRef file, std::initializer_list<StringRef> prefixes) {
    bool used = any_of(symbols, [&](StringRef symbol) {
      return any_of(prefixes, [&](StringRef prefix) {
        return symbol.starts_with(prefix);
      });
    });
    if (!used)
      return;
    if (text.empty())
      text = StringRef(textKernelArguments)
                 .split("KERNELARGUMENTS_H\n#define CLEAVE_EXECUTABLE_CUDA_"
                        "KERNELARGUMENTS_H\n")
                 .second.split("/// For each class")
                 .first;
    text += bodyOf(file);
  };
  add(textCheck, {"cleave_check"});
  add(textCopy, {"cleave_copy", "cleave_transpose"});
  add(textFill, {"cleave_fill"});
  add(textOrder, {"cleave_to_order", "cleave_from_order"});
  add(textReduce, {"cleave_reduce"});
  add(textReduceHalf, {"cleave_reduce_f16"});
  text += reductionKernels(symbols);
  add(textScatterAdd, {"cleave_sort", "cleave_scatter"});
  add(textTopK, {"cleave_top_k"});
  add(textOrthonormalize, {"cleave_orthonormal"});
  add(textGrouped, {"cleave_grouped"});
  add(StringRef(textAttention).split("#define CLEAVE_ATTENTION_KERNELS").first,
      {"cleave_attention"});
  add(StringRef(textAttention16)
          .split("#define CLEAVE_ATTENTION16_KERNELS_OF")
          .first,
      {"cleave_attention_forward_bf16", "cleave_attention_forward_f16",
       "cleave_attention_queries_bf16", "cleave_attention_queries_f16",
       "cleave_attention_keys_bf16", "cleave_attention_keys_f16"});
  return text + attentionKernels(symbols);
}
