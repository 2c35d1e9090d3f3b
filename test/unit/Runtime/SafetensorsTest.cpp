//===- SafetensorsTest.cpp - Tests of tensors in files --------------------===//
//
// Part of the Cleave project, under the Apache License v2.0 with LLVM
// Exceptions. See LICENSE for license information.
//
//===----------------------------------------------------------------------===//

#include "cleave/Executable/Files/Safetensors.h"
#include "cleave/Executable/Format/FileIO.h"
#include "llvm/ADT/bit.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "gtest/gtest.h"

#include <cmath>
#include <random>

using namespace cleave::runtime;

namespace {

class Safetensors : public testing::Test {
protected:
  void SetUp() override {
    ASSERT_FALSE(llvm::sys::fs::createUniqueDirectory("safetensors", folder));
    path = (folder + "/t.safetensors").str();
  }
  void TearDown() override { llvm::sys::fs::remove_directories(folder); }

  void writeRaw(const std::string &bytes) {
    ASSERT_FALSE(bool(writeFileAtomically(
        path, [&](llvm::raw_ostream &os) { os << bytes; })));
  }
  static std::string file(const std::string &header, size_t dataBytes) {
    char length[8];
    llvm::support::endian::write64le(length, header.size());
    return std::string(length, 8) + header + std::string(dataBytes, '\1');
  }
  /// The message of opening what `bytes` are, or "" if it opens.
  std::string message(const std::string &bytes) {
    writeRaw(bytes);
    llvm::Expected<SafetensorsFile> opened = SafetensorsFile::open(path);
    return opened ? "" : llvm::toString(opened.takeError());
  }
  void expect(const std::string &bytes, const char *part) {
    std::string text = message(bytes);
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find(path), std::string::npos) << text;
  }

  llvm::SmallString<128> folder;
  std::string path;
};

TEST_F(Safetensors, RoundTrip) {
  std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  std::vector<int64_t> ids = {7, 8};
  ASSERT_FALSE(
      bool(writeSafetensors(path,
                            {{"weights", DType::F32, {2, 3}, weights.data()},
                             {"a\"b\\c", DType::I64, {2}, ids.data()},
                             {"empty", DType::F32, {0, 4}, nullptr},
                             {"scalar", DType::F32, {}, weights.data()}},
                            {{"format", "pt"}})));
  llvm::Expected<SafetensorsFile> opened = SafetensorsFile::open(path);
  ASSERT_TRUE(bool(opened)) << llvm::toString(opened.takeError());
  EXPECT_EQ(opened->getEntries().size(), 4u);
  EXPECT_EQ(opened->getMetadata().at("format"), "pt");
  const SafetensorsFile::Entry *entry = opened->find("weights");
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->dtype, "F32");
  EXPECT_EQ(entry->shape, (std::vector<int64_t>{2, 3}));
  std::vector<float> read(6);
  EXPECT_FALSE(
      bool(opened->read(*entry, 0, 24, reinterpret_cast<char *>(read.data()))));
  EXPECT_EQ(read, weights);
  ASSERT_TRUE(opened->find("a\"b\\c"));
  EXPECT_EQ(opened->find("scalar")->bytes, 4);
  EXPECT_EQ(opened->find("nothing"), nullptr);
}

TEST_F(Safetensors, RefusesDamage) {
  auto tensor = [](const char *name, const char *dtype, const char *shape,
                   const char *offsets) {
    return std::string("\"") + name + "\":{\"dtype\":\"" + dtype +
           "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  std::string a = tensor("a", "F32", "[2]", "[0,8]");
  EXPECT_EQ(message(file("{" + a + "}", 8)), "");
  expect("", "0 bytes");
  expect("1234567", "7 bytes");
  expect(std::string(8, '\xff'), "above the limit");
  expect(file("{}", 0).substr(0, 9), "truncated");
  expect(file("{" + a + "}", 7), "truncated");
  expect(file("{" + a + "}", 9), "1 bytes at the end belong to no tensor");
  expect(file("{" + a, 8), "not valid JSON");
  expect(file("[]", 0), "not a JSON object");
  expect(file("{" + a + "," + a + "}", 8), "'a' twice");
  // The same key, spelled otherwise.
  expect(file("{" + a + ",\"\\u0061\":" + a.substr(4) + "}", 8), "'a' twice");
  expect(file("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],"
              "\"data_offsets\":[0,8]}}",
              8),
         "'dtype' twice");
  expect(file("{" + a + "," + tensor("b", "F32", "[2]", "[4,12]") + "}", 12),
         "overlaps");
  expect(file("{" + a + "," + tensor("b", "F32", "[2]", "[12,20]") + "}", 20),
         "hole of 4 bytes before the data of tensor 'b'");
  expect(file("{" + tensor("a", "F32", "[2]", "[4,12]") + "}", 12), "hole");
  expect(file("{" + tensor("a", "F32", "[3]", "[0,8]") + "}", 8),
         "takes 12 bytes");
  expect(file("{" + tensor("a", "F31", "[2]", "[0,8]") + "}", 8), "F31");
  expect(file("{" + tensor("a", "F32", "[-2]", "[0,8]") + "}", 8), "sizes");
  expect(file("{" + tensor("a", "F32", "[1.5]", "[0,8]") + "}", 8), "sizes");
  expect(
      file("{" + tensor("a", "F32", "[4294967296,4294967296]", "[0,8]") + "}",
           8),
      "64 bits");
  expect(file("{" + tensor("a", "F32", "[2]", "[8,0]") + "}", 8),
         "not a range");
  expect(file("{" + tensor("a", "F32", "[2]", "[-8,0]") + "}", 8),
         "not a range");
  expect(file("{\"a\":3}", 0), "not a JSON object");
  expect(file("{\"a\":{\"dtype\":\"F32\"}}", 0), "needs dtype");
  expect(file("{\"__metadata__\":{\"x\":3}}", 0), "other than strings");
  expect(file("{\"a\":" + std::string(100000, '['), 0), "deep");
  llvm::Expected<SafetensorsFile> missing =
      SafetensorsFile::open((folder + "/none").str());
  ASSERT_FALSE(bool(missing));
  EXPECT_NE(llvm::toString(missing.takeError()).find("No such file"),
            std::string::npos);
}

/// Damaged files are refused or read, never more.
TEST_F(Safetensors, SurvivesRandomDamage) {
  std::vector<float> values(64, 1.5f);
  ASSERT_FALSE(bool(
      writeSafetensors(path, {{"first", DType::F32, {4, 8}, values.data()},
                              {"second", DType::F32, {32}, values.data()}})));
  auto buffer = llvm::MemoryBuffer::getFile(path);
  std::string good = (*buffer)->getBuffer().str();
  std::mt19937 gen(3);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = good;
    int changes = 1 + static_cast<int>(gen() % 3);
    for (int i = 0; i < changes; ++i) {
      size_t headerEnd = 200;
      switch (gen() % 4) {
      case 0:
        bytes.resize(gen() % (bytes.size() + 1));
        break;
      case 1:
        if (!bytes.empty())
          bytes[gen() % std::min(bytes.size(), headerEnd)] = char(gen());
        break;
      case 2:
        if (!bytes.empty())
          bytes[gen() % std::min(bytes.size(), headerEnd)] =
              "0123456789[]{},:\"-"[gen() % 18];
        break;
      default:
        bytes.insert(gen() % (bytes.size() + 1), 1, char(gen()));
      }
    }
    writeRaw(bytes);
    llvm::Expected<SafetensorsFile> opened = SafetensorsFile::open(path);
    if (!opened) {
      EXPECT_FALSE(llvm::toString(opened.takeError()).empty());
      ++refused;
      continue;
    }
    float sum = 0;
    for (const auto &entry : opened->getEntries()) {
      std::vector<char> data(static_cast<size_t>(entry.bytes));
      EXPECT_FALSE(bool(opened->read(entry, 0, entry.bytes, data.data())));
      for (char byte : data)
        sum += byte;
    }
    EXPECT_EQ(sum, sum);
  }
  EXPECT_GT(refused, 500);
}

TEST_F(Safetensors, NoPartialFile) {
  std::string inside = (folder + "/none/t.safetensors").str();
  float value = 1;
  llvm::Error error = writeSafetensors(inside, {{"a", DType::F32, {}, &value}});
  ASSERT_TRUE(bool(error));
  EXPECT_NE(llvm::toString(std::move(error)).find("cannot write"),
            std::string::npos);
  EXPECT_FALSE(llvm::sys::fs::exists(inside));
}

/// What `value` becomes, and whether it converts.
template <typename To, typename From>
std::pair<To, bool> convert(const char *dtype, From value, DType type) {
  std::optional<Conversion> conversion = Conversion::find(dtype, type);
  EXPECT_TRUE(conversion && conversion->fromBytes == sizeof(From) &&
              conversion->toBytes == sizeof(To));
  To result{};
  int64_t wrong = conversion->run(reinterpret_cast<const char *>(&value),
                                  reinterpret_cast<char *>(&result), 1);
  EXPECT_EQ(wrong, conversion->run(reinterpret_cast<const char *>(&value),
                                   nullptr, 1));
  EXPECT_TRUE(wrong == -1 || (wrong == 0 && !conversion->total));
  return {result, wrong == -1};
}

TEST(Conversions, RoundToSixteenBits) {
  // Exact, a little more than half, half, and less than half of the last place.
  for (uint32_t low : {0x0u, 0x1u, 0x7fffu, 0x8000u, 0x8001u, 0x1000u, 0xfffu,
                       0x1001u, 0xffffu})
    for (uint32_t high = 0; high < 65536; ++high) {
      float value = llvm::bit_cast<float>(high << 16 | low);
      auto half = convert<uint16_t>("F32", value, DType::F16);
      auto brain = convert<uint16_t>("F32", value, DType::BF16);
      _Float16 expected = static_cast<_Float16>(value);
      if (std::isnan(value)) {
        EXPECT_EQ(half.first & 0x7e00, 0x7e00);
        EXPECT_EQ(brain.first, 0x7fc0);
        continue;
      }
      EXPECT_EQ(half.second,
                !std::isinf(static_cast<float>(expected)) || std::isinf(value));
      if (half.second)
        EXPECT_EQ(half.first, llvm::bit_cast<uint16_t>(expected)) << value;
      // The nearer one of the two neighbours; the even one of two equally near.
      uint32_t bits = high << 16 | low, down = high;
      bool up =
          (bits & 0xffff) > 0x8000 || ((bits & 0xffff) == 0x8000 && (high & 1));
      uint32_t nearest = down + up;
      bool infinite = (nearest & 0x7fff) == 0x7f80;
      EXPECT_EQ(brain.second, !infinite || std::isinf(value));
      if (brain.second)
        EXPECT_EQ(brain.first, nearest) << value;
    }
}

TEST(Conversions, KeepIntegers) {
  using Pair = std::pair<int64_t, bool>;
  EXPECT_EQ((convert<int64_t>("U32", uint32_t(4294967295), DType::I64)),
            Pair(4294967295, true));
  EXPECT_EQ((convert<int64_t>("U64", uint64_t(INT64_MAX), DType::I64)),
            Pair(INT64_MAX, true));
  EXPECT_FALSE(convert<int64_t>("U64", uint64_t(1) << 63, DType::I64).second);
  EXPECT_EQ((convert<int32_t>("I64", int64_t(INT32_MIN), DType::I32).first),
            INT32_MIN);
  EXPECT_FALSE(convert<int32_t>("I64", int64_t(1) << 31, DType::I32).second);
  EXPECT_EQ((convert<int8_t>("I16", int16_t(-128), DType::I8).first), -128);
  EXPECT_FALSE(convert<int8_t>("U8", uint8_t(128), DType::I8).second);
  EXPECT_EQ((convert<uint8_t>("I64", int64_t(1), DType::I1).first), 1);
  EXPECT_FALSE(convert<uint8_t>("I64", int64_t(2), DType::I1).second);
  EXPECT_FALSE(convert<uint8_t>("I8", int8_t(-1), DType::I1).second);
  EXPECT_EQ((convert<int32_t>("BOOL", uint8_t(1), DType::I32).first), 1);
  for (const char *dtype : {"I64", "U8", "BOOL"})
    for (DType type : {DType::F64, DType::F32, DType::F16, DType::BF16})
      EXPECT_FALSE(Conversion::find(dtype, type));
  for (const char *dtype : {"F64", "F32", "F16", "BF16", "F8_E4M3"})
    for (DType type : {DType::I64, DType::I32, DType::I8, DType::I1})
      EXPECT_FALSE(Conversion::find(dtype, type));
}

/// Their scales are other tensors.
TEST(Conversions, CopyFloatsOfEightBits) {
  std::pair<const char *, DType> own[] = {{"F8_E4M3", DType::F8E4M3},
                                          {"F8_E5M2", DType::F8E5M2}};
  for (auto [dtype, type] : own) {
    EXPECT_EQ(safetensorsName(type), dtype);
    for (int code = 0; code < 256; ++code)
      EXPECT_EQ(convert<uint8_t>(dtype, static_cast<uint8_t>(code), type),
                std::pair(static_cast<uint8_t>(code), true));
    for (DType other : {DType::F64, DType::F32, DType::F16, DType::BF16,
                        DType::I8, DType::I1})
      EXPECT_FALSE(Conversion::find(dtype, other));
    for (const char *other : {"F64", "F32", "F16", "BF16", "I8", "U8", "BOOL"})
      EXPECT_FALSE(Conversion::find(other, type));
  }
  EXPECT_FALSE(Conversion::find("F8_E4M3", DType::F8E5M2));
}

} // namespace
