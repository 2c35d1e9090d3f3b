//===- FakeNvrtc.cpp - NVRTC that compiles for the host -------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//
///
/// \file
/// libnvrtc.so.13 for machines without a device: CUDA C++ becomes a library for
/// the host, in which blocks are emulated (Emulation.h). Its bytes are the
/// "cubin", which the fake driver loads. Of each kernel NAME it exports
///
///   cleave_host_NAME             runs a grid; see Kernels.cpp
///   cleave_host_parameters_NAME  the number of parameters
///   cleave_host_sizes_NAME       their sizes in bytes
///   cleave_host_pointers_NAME    1 for each that is a pointer
///   cleave_host_threads_NAME     the bound of the threads of a block
///
/// and cleave_host_architecture, the compute capability (90 for 9.0).
///
/// Kernels are `extern "C" __global__ void NAME(...)`, with or without
/// __launch_bounds__, defined outside of macros. Of the options, -D, -I and the
/// architecture count.
///
/// Environment: CLEAVE_FAKE_COMPILER, CLEAVE_FAKE_EMULATION and
/// CLEAVE_FAKE_HEADERS replace the compiler and the folders of Emulation.h and
/// of NVIDIA's headers. CLEAVE_FAKE_CACHE is a folder in which libraries are
/// kept for the next process with the same text. CLEAVE_FAKE_KEEP is a folder
/// in which the texts are left.
///
//===----------------------------------------------------------------------===//

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Result {
  Success = 0,
  OutOfMemory = 1,
  ProgramCreationFailure = 2,
  InvalidInput = 3,
  InvalidProgram = 4,
  InvalidOption = 5,
  Compilation = 6,
  BuiltinOperationFailure = 7,
  InternalError = 11
};

constexpr int architectures[] = {75, 80,  86,  87,  88,  89,
                                 90, 100, 103, 110, 120, 121};

struct Program {
  std::string source, name, log, cubin, ptx;
  bool compiled = false;
};

std::string environment(const char *name, const char *otherwise) {
  const char *value = std::getenv(name);
  return value && *value ? value : otherwise;
}

std::string shellWord(const std::string &text) {
  std::string result = "'";
  for (char c : text)
    result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string readFile(const std::filesystem::path &path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Kernel {
  std::string name, bounds;
};

/// The text behind the parenthesis that closes the one at `at`.
size_t behindParenthesis(const std::string &text, size_t at) {
  int depth = 0;
  for (; at < text.size(); ++at) {
    if (text[at] == '(')
      ++depth;
    else if (text[at] == ')' && --depth == 0)
      return at + 1;
  }
  return std::string::npos;
}

/// The kernels of a text that are defined in it.
std::vector<Kernel> findKernels(const std::string &text) {
  std::vector<Kernel> kernels;
  static const std::regex head(R"re(extern\s*"C"\s*__global__\s+)re");
  static const std::regex word(R"re(\s*(\w+))re");
  for (std::sregex_iterator it(text.begin(), text.end(), head), end; it != end;
       ++it) {
    size_t at = it->position() + it->length();
    Kernel kernel;
    for (std::smatch match;
         std::regex_search(text.begin() + at, text.end(), match, word,
                           std::regex_constants::match_continuous);) {
      at += match.length();
      if (match[1] == "__launch_bounds__") {
        at = text.find('(', at);
        size_t behind = behindParenthesis(text, at);
        if (behind == std::string::npos)
          break;
        kernel.bounds = text.substr(at + 1, behind - at - 2);
        kernel.bounds = kernel.bounds.substr(0, kernel.bounds.find(','));
        at = behind;
      } else {
        kernel.name = match[1];
      }
    }
    if (at >= text.size() || text[at] != '(' || kernel.name.empty())
      continue;
    size_t behind = behindParenthesis(text, at);
    if (behind == std::string::npos)
      continue;
    size_t next = text.find_first_not_of(" \t\r\n", behind);
    if (next != std::string::npos && text[next] == '{')
      kernels.push_back(kernel);
  }
  return kernels;
}

const char adapters[] = R"(
namespace cleave_host {
template <class F> struct Launch;
template <class... P> struct Launch<void(P...)> {
  static constexpr unsigned count = sizeof...(P);
  static constexpr unsigned sizes[] = {sizeof(P)..., 0};
  static constexpr unsigned char pointers[] = {std::is_pointer_v<P>..., 0};
  template <void (*function)(P...), size_t... i>
  static void call(void **from, std::index_sequence<i...>) {
    function(*static_cast<std::remove_const_t<P> *>(from[i])...);
  }
  template <void (*function)(P...)> static void thread(void *from) {
    call<function>(static_cast<void **>(from),
                   std::make_index_sequence<sizeof...(P)>());
  }
};
__attribute__((destructor)) static void release() {
  emulation::release();
}
} // namespace cleave_host
#define CLEAVE_EXPORT                                                          \
  extern "C" __attribute__((visibility("default"))) const
#define CLEAVE_ADAPTER(NAME, THREADS)                                          \
  extern "C" __attribute__((visibility("default"))) void cleave_host_##NAME(   \
      unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,         \
      unsigned sharedBytes, void **parameters) {                               \
    using L = cleave_host::Launch<decltype(NAME)>;                             \
    emulation::emulateGrid(gridX, gridY, gridZ, blockX, sharedBytes,           \
                           &L::template thread<&NAME>, parameters);            \
  }                                                                            \
  CLEAVE_EXPORT unsigned cleave_host_parameters_##NAME;                        \
  const unsigned cleave_host_parameters_##NAME =                               \
      cleave_host::Launch<decltype(NAME)>::count;                              \
  CLEAVE_EXPORT unsigned *const cleave_host_sizes_##NAME;                      \
  const unsigned *const cleave_host_sizes_##NAME =                             \
      cleave_host::Launch<decltype(NAME)>::sizes;                              \
  CLEAVE_EXPORT unsigned char *const cleave_host_pointers_##NAME;              \
  const unsigned char *const cleave_host_pointers_##NAME =                     \
      cleave_host::Launch<decltype(NAME)>::pointers;                           \
  CLEAVE_EXPORT unsigned cleave_host_threads_##NAME;                           \
  const unsigned cleave_host_threads_##NAME = (THREADS);
)";

/// The text for the host.
std::string translate(const Program &program, int architecture) {
  static const std::regex include(
      R"re(^[ \t]*#[ \t]*include[ \t]*<cuda[^>\n]*>)re",
      std::regex_constants::multiline);
  static const std::regex dynamic(
      R"re(extern\s+__shared__\s+((?:(?:__align__|alignas)\s*\([^)]*\)\s*)?)([\w\s:]+?)\s*(\w+)\s*\[\s*\]\s*;)re");
  std::string text = std::regex_replace(program.source, include, "");
  std::string body;
  std::sregex_iterator it(text.begin(), text.end(), dynamic), end;
  size_t at = 0;
  for (; it != end; ++it) {
    body.append(text, at, it->position() - at);
    // The emulation's array has this name.
    if ((*it)[3] != "shared")
      body += (*it)[2].str() + " *const " + (*it)[3].str() +
              " = reinterpret_cast<" + (*it)[2].str() + " *>(::shared);";
    at = it->position() + it->length();
  }
  body.append(text, at);
  std::vector<Kernel> kernels = findKernels(body);
  std::string result = "#include \"Emulation.h\"\n#include <type_traits>\n"
                       "#include <utility>\n#line 1 " +
                       ("\"" + program.name + "\"\n") + body;
  result += "\n#line 1 \"adapters\"\n";
  result += adapters;
  for (const Kernel &kernel : kernels)
    result += "CLEAVE_ADAPTER(" + kernel.name + ", " +
              (kernel.bounds.empty() ? "1024" : "(" + kernel.bounds + ")") +
              ")\n";
  return result +
         "CLEAVE_EXPORT int cleave_host_architecture;\n"
         "const int cleave_host_architecture = " +
         std::to_string(architecture) + ";\n";
}

/// The folder of a new name for the files of a compilation.
std::filesystem::path makeFolder() {
  std::string path =
      (std::filesystem::temp_directory_path() / "cleave-fake-XXXXXX").string();
  return mkdtemp(path.data()) ? path : "";
}

uint64_t hashOf(const std::string &text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : text)
    hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

Result compile(Program &program, const std::string &text,
               const std::string &options) {
  std::string emulation =
      environment("CLEAVE_FAKE_EMULATION", CLEAVE_FAKE_EMULATION);
  std::string command =
      shellWord(environment("CLEAVE_FAKE_COMPILER", CLEAVE_FAKE_COMPILER)) +
      " -std=c++20 -O1 -fPIC -shared -ffp-contract=off -fvisibility=hidden -w"
      " -fno-caret-diagnostics -DCLEAVE_CUDA_TYPES -DCLEAVE_ONE_LAUNCH -I " +
      shellWord(environment("CLEAVE_FAKE_HEADERS", CLEAVE_FAKE_HEADERS)) +
      " -I " + shellWord(emulation) + options;
  std::filesystem::path cached;
  if (const char *folder = std::getenv("CLEAVE_FAKE_CACHE")) {
    char name[64];
    std::snprintf(
        name, sizeof name, "%016llx.so",
        static_cast<unsigned long long>(hashOf(
            command + text +
            readFile(std::filesystem::path(emulation) / "Emulation.h"))));
    cached = std::filesystem::path(folder) / name;
    program.cubin = readFile(cached);
    if (!program.cubin.empty())
      return Success;
  }
  std::filesystem::path folder = makeFolder();
  if (folder.empty())
    return InternalError;
  std::filesystem::path source = folder / "kernels.cpp",
                        library = folder / "kernels.so";
  std::ofstream(source) << text;
  command += " " + shellWord(source.string()) + " -o " +
             shellWord(library.string()) + " </dev/null 2>&1";
  int status = -1;
  if (FILE *pipe = popen(command.c_str(), "re")) {
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;)
      program.log.append(buffer, n);
    status = pclose(pipe);
  }
  std::error_code ignored;
  if (const char *keep = std::getenv("CLEAVE_FAKE_KEEP")) {
    static std::atomic<int> count;
    std::filesystem::copy_file(
        source,
        std::filesystem::path(keep) / ("kernels-" + std::to_string(getpid()) +
                                       "-" + std::to_string(count++) + ".cpp"),
        std::filesystem::copy_options::overwrite_existing, ignored);
  }
  program.cubin = readFile(library);
  std::filesystem::remove_all(folder, ignored);
  if (status != 0 || program.cubin.empty()) {
    program.cubin.clear();
    return Compilation;
  }
  if (!cached.empty()) {
    // Another process sees all of the file or none.
    std::string part = cached.string() + "." + std::to_string(getpid());
    std::ofstream(part, std::ios::binary) << program.cubin;
    std::filesystem::rename(part, cached, ignored);
  }
  return Success;
}

/// The architecture of an option: "sm_90", "compute_90a".
bool parseArchitecture(std::string text, int &architecture, bool &real) {
  real = text.rfind("sm_", 0) == 0;
  if (!real && text.rfind("compute_", 0) != 0)
    return false;
  text = text.substr(text.find('_') + 1);
  if (!text.empty() && (text.back() == 'a' || text.back() == 'f'))
    text.pop_back();
  for (int known : architectures)
    if (std::to_string(known) == text) {
      architecture = known;
      return true;
    }
  return false;
}

Program *of(void *program) { return static_cast<Program *>(program); }

} // namespace

EXPORT const char *nvrtcGetErrorString(int result) {
  switch (result) {
  case Success:
    return "NVRTC_SUCCESS";
  case OutOfMemory:
    return "NVRTC_ERROR_OUT_OF_MEMORY";
  case ProgramCreationFailure:
    return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
  case InvalidInput:
    return "NVRTC_ERROR_INVALID_INPUT";
  case InvalidProgram:
    return "NVRTC_ERROR_INVALID_PROGRAM";
  case InvalidOption:
    return "NVRTC_ERROR_INVALID_OPTION";
  case Compilation:
    return "NVRTC_ERROR_COMPILATION";
  case BuiltinOperationFailure:
    return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
  case InternalError:
    return "NVRTC_ERROR_INTERNAL_ERROR";
  }
  return "NVRTC_ERROR unknown";
}

EXPORT int nvrtcVersion(int *major, int *minor) {
  if (!major || !minor)
    return InvalidInput;
  *major = 13;
  *minor = 0;
  return Success;
}

EXPORT int nvrtcGetNumSupportedArchs(int *count) {
  if (!count)
    return InvalidInput;
  *count = std::size(architectures);
  return Success;
}

EXPORT int nvrtcGetSupportedArchs(int *list) {
  if (!list)
    return InvalidInput;
  std::copy(std::begin(architectures), std::end(architectures), list);
  return Success;
}

EXPORT int nvrtcCreateProgram(void **program, const char *source,
                              const char *name, int headerCount,
                              const char *const *headers,
                              const char *const *includeNames) {
  if (!program || !source || headerCount < 0 ||
      (headerCount && (!headers || !includeNames)))
    return InvalidInput;
  // Texts of headers have no place in what a kernel of ours is.
  if (headerCount)
    return ProgramCreationFailure;
  *program = new Program{source, name ? name : "default_program", "", "", ""};
  return Success;
}

EXPORT int nvrtcDestroyProgram(void **program) {
  if (!program || !*program)
    return InvalidProgram;
  delete of(*program);
  *program = nullptr;
  return Success;
}

EXPORT int nvrtcCompileProgram(void *handle, int count,
                               const char *const *options) {
  if (!handle)
    return InvalidProgram;
  if (count < 0 || (count && !options))
    return InvalidInput;
  Program &program = *of(handle);
  program.log.clear();
  program.cubin.clear();
  program.ptx.clear();
  program.compiled = false;
  int architecture = 75;
  bool real = false;
  std::string passed;
  for (int i = 0; i < count; ++i) {
    std::string option = options[i], value;
    // A value may be an option of its own.
    auto takes = [&](std::initializer_list<const char *> names) {
      for (std::string name : names) {
        if (option == name && i + 1 < count) {
          value = options[++i];
          return true;
        }
        if (option.rfind(name + "=", 0) == 0) {
          value = option.substr(name.size() + 1);
          return true;
        }
      }
      return false;
    };
    if (takes({"--gpu-architecture", "-arch"})) {
      if (!parseArchitecture(value, architecture, real)) {
        program.log = "nvrtc: error: invalid value for --gpu-architecture (" +
                      value + ")\n";
        return InvalidOption;
      }
    } else if (takes({"--define-macro", "-D"})) {
      passed += " -D" + shellWord(value);
    } else if (takes({"--include-path", "-I"})) {
      // Those of NVIDIA's headers come first.
      passed += " -I " + shellWord(value);
    } else if (option.rfind("-D", 0) == 0 || option.rfind("-I", 0) == 0) {
      passed += " " + shellWord(option);
    } else if (option.empty() || option[0] != '-') {
      program.log = "nvrtc: error: unrecognized option " + option + "\n";
      return InvalidOption;
    }
  }
  Result result = compile(program, translate(program, architecture), passed);
  if (result != Success)
    return result;
  program.compiled = true;
  // The library as digits, from which the driver has it again.
  program.ptx = "// fake\n.version 9.0\n.target sm_" +
                std::to_string(architecture) + "\n.address_size 64\n// ";
  for (unsigned char byte : program.cubin) {
    program.ptx += "0123456789abcdef"[byte >> 4];
    program.ptx += "0123456789abcdef"[byte & 15];
  }
  program.ptx += '\n';
  // A virtual architecture has no binary.
  if (!real)
    program.cubin.clear();
  return Success;
}

EXPORT int nvrtcGetProgramLogSize(void *program, size_t *size) {
  if (!program || !size)
    return InvalidInput;
  *size = of(program)->log.size() + 1;
  return Success;
}

EXPORT int nvrtcGetProgramLog(void *program, char *log) {
  if (!program || !log)
    return InvalidInput;
  std::memcpy(log, of(program)->log.c_str(), of(program)->log.size() + 1);
  return Success;
}

EXPORT int nvrtcGetCUBINSize(void *program, size_t *size) {
  if (!program || !size)
    return InvalidInput;
  if (!of(program)->compiled)
    return InvalidProgram;
  *size = of(program)->cubin.size();
  return Success;
}

EXPORT int nvrtcGetCUBIN(void *program, char *to) {
  if (!program || !to)
    return InvalidInput;
  if (!of(program)->compiled)
    return InvalidProgram;
  std::memcpy(to, of(program)->cubin.data(), of(program)->cubin.size());
  return Success;
}

EXPORT int nvrtcGetPTXSize(void *program, size_t *size) {
  if (!program || !size)
    return InvalidInput;
  if (!of(program)->compiled)
    return InvalidProgram;
  *size = of(program)->ptx.size() + 1;
  return Success;
}

EXPORT int nvrtcGetPTX(void *program, char *to) {
  if (!program || !to)
    return InvalidInput;
  if (!of(program)->compiled)
    return InvalidProgram;
  std::memcpy(to, of(program)->ptx.c_str(), of(program)->ptx.size() + 1);
  return Success;
}
