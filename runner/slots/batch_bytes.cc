#include "reprise/runner/slots/batch_bytes.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr size_t kAlignment = 8;

// The first bytes. Includes the sizes of some stored structs, which may differ between builds.
constexpr uint64_t kMark = 0x5245505200000000u + (sizeof(SlotJoin) << 20) +
                           (sizeof(LogitsParams) << 12) + (sizeof(BlockTableUpdate) << 4) + 3;

// Types that are copied from memory.
template <typename T>
concept Plain = std::is_trivially_copyable_v<T>;

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& bytes) : bytes_(bytes) { bytes_.clear(); }

  template <Plain T>
  void Value(const T& value) {
    Append(&value, sizeof(T));
  }

  // Writes the length, then the elements at the next multiple of kAlignment.
  template <Plain T>
  void Array(absl::Span<const T> array) {
    static_assert(alignof(T) <= kAlignment);
    Value(static_cast<uint64_t>(array.size()));
    Append(array.data(), array.size() * sizeof(T));
  }

  // Writes the length, then calls `each` to write each element.
  template <typename T, typename Each>
  void Structs(absl::Span<const T> structs, std::vector<T>* /*kept*/, Each each) {
    Value(static_cast<uint64_t>(structs.size()));
    for (const T& element : structs) each(element);
  }

 private:
  void Append(const void* data, size_t size) {
    const size_t begin = bytes_.size();
    bytes_.resize(begin + (size + kAlignment - 1) / kAlignment * kAlignment);
    if (size > 0) std::memcpy(bytes_.data() + begin, data, size);
  }

  std::vector<std::byte>& bytes_;
};

// After the first error, arrays are read as empty, and other values do not change. Finish() returns
// the error.
class Reader {
 public:
  explicit Reader(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  template <Plain T>
  void Value(T& value) {
    if (const std::byte* data = Take(sizeof(T), 1)) std::memcpy(&value, data, sizeof(T));
  }

  // Reads an enumerator in [0, largest].
  template <typename E>
  requires std::is_enum_v<E>
  void Enum(E& value, E largest) {
    std::underlying_type_t<E> number = 0;
    Value(number);
    if (number < 0 || number > static_cast<std::underlying_type_t<E>>(largest)) {
      Fail(absl::StrCat("an enumerator of ", static_cast<int>(number)));
      return;
    }
    value = static_cast<E>(number);
  }

  template <Plain T>
  void Array(absl::Span<const T>& array) {
    uint64_t size = 0;
    Value(size);
    const std::byte* data = Take(sizeof(T), size);
    // Aligned as in the writer. T is an implicit-lifetime type that was written as T.
    array = data == nullptr ? absl::Span<const T>()
                            : absl::MakeConstSpan(reinterpret_cast<const T*>(data), size);
  }

  // Reads each element by calling `each`; `kept` owns the elements.
  template <typename T, typename Each>
  void Structs(absl::Span<const T>& structs, std::vector<T>* kept, Each each) {
    uint64_t size = 0;
    Value(size);
    kept->clear();
    // Each element takes at least one byte, so a wrong size fails at the first missing element.
    for (uint64_t i = 0; i < size && status_.ok(); ++i) each(kept->emplace_back());
    structs = *kept;
  }

  bool ok() const { return status_.ok(); }

  absl::Status Finish() {
    if (status_.ok() && !bytes_.empty()) Fail(absl::StrCat(bytes_.size(), " bytes too many"));
    return status_;
  }

  void Fail(const std::string& what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat("bytes: expected a batch that WriteBatch() wrote, got ", what));
    }
  }

 private:
  const std::byte* Take(size_t element_size, uint64_t count) {
    if (!status_.ok()) return nullptr;
    if (count > bytes_.size() / element_size) {
      Fail("too few bytes");
      return nullptr;
    }
    const size_t size = (element_size * count + kAlignment - 1) / kAlignment * kAlignment;
    if (size > bytes_.size()) {
      Fail("too few bytes");
      return nullptr;
    }
    const std::byte* data = bytes_.data();
    bytes_.remove_prefix(size);
    return data;
  }

  absl::Span<const std::byte> bytes_;
  absl::Status status_;
};

// Only a reader checks the range of enumerators.
template <typename E>
void Enum(Writer& writer, const E& value, E /*largest*/) {
  writer.Value(static_cast<std::underlying_type_t<E>>(value));
}
template <typename E>
void Enum(Reader& reader, E& value, E largest) {
  reader.Enum(value, largest);
}

// ---- Data that is not one contiguous array.

void Positions(Writer& writer, const RowPositions& positions) {
  writer.Value(positions.count);
  if (positions.count == 0) return;
  writer.Value(positions.num_dims);
  for (int dim = 0; dim < positions.num_dims; ++dim) {
    writer.Array(absl::MakeConstSpan(positions.data + dim * positions.dim_stride, positions.count));
  }
}

// Array() aligns all dimensions in the same way, so the stride between them is constant.
void Positions(Reader& reader, RowPositions& positions) {
  reader.Value(positions.count);
  if (positions.count == 0) return;
  reader.Value(positions.num_dims);
  if (positions.count < 0 || positions.num_dims < 0) {
    reader.Fail(absl::StrCat(positions.count, " positions of ", positions.num_dims, " dimensions"));
  }
  absl::Span<const int32_t> of_dim;
  for (int dim = 0; dim < positions.num_dims && reader.ok(); ++dim) {
    reader.Array(of_dim);
    if (of_dim.size() != static_cast<size_t>(positions.count)) reader.Fail("too few positions");
    if (dim == 0) positions.data = of_dim.data();
    if (dim == 1) positions.dim_stride = of_dim.data() - positions.data;
  }
  if (!reader.ok()) positions = {};
}

void Rows(Writer& writer, const EmbeddingRows& rows) {
  writer.Value(rows.num_rows);
  writer.Value(rows.dim);
  writer.Value(static_cast<int32_t>(rows.dtype));
  writer.Value(rows.gpu);
  if (rows.gpu != kHostMemory) return;
  const size_t row_bytes = size_t{1} * rows.dim * SizeOf(rows.dtype);
  for (int i = 0; i < rows.num_rows; ++i) {
    writer.Array(absl::MakeConstSpan(static_cast<const std::byte*>(rows.row(i)), row_bytes));
  }
}

// Reads each row with Array(), so the stride between rows is constant.
void Rows(Reader& reader, EmbeddingRows& rows) {
  int32_t dtype = 0;
  reader.Value(rows.num_rows);
  reader.Value(rows.dim);
  reader.Value(dtype);
  reader.Value(rows.gpu);
  const bool is_dtype = dtype >= 0 && dtype <= static_cast<int32_t>(DType::kFp8E5M2);
  if (!is_dtype || rows.num_rows < 0 || rows.dim < 0) {
    reader.Fail(absl::StrCat(rows.num_rows, " embeddings of ", rows.dim, " dims, dtype ", dtype));
  }
  rows.dtype = is_dtype ? static_cast<DType>(dtype) : DType::kFloat32;
  rows.row_stride = rows.dim;
  const size_t row_bytes = size_t{1} * rows.dim * SizeOf(rows.dtype);
  absl::Span<const std::byte> row;
  for (int i = 0; rows.gpu == kHostMemory && i < rows.num_rows && reader.ok(); ++i) {
    reader.Array(row);
    if (row.size() != row_bytes) reader.Fail("an embedding of another size");
    if (i == 0) rows.data = row.data();
    if (i == 1) {
      rows.row_stride =
          (row.data() - static_cast<const std::byte*>(rows.data)) / SizeOf(rows.dtype);
    }
  }
  if (!reader.ok()) rows = {};
}

// The fields of each struct. Each function serves both directions.

template <typename Archive, typename Row>
void Fields(Archive& archive,
            Row& row) requires std::is_same_v<std::remove_const_t<Row>, ScheduledRow> {
  archive.Value(row.slot);
  Enum(archive, row.output, RowOutput::kToken);
  archive.Array(row.tokens);
  archive.Array(row.allowed_tokens);
  Enum(archive, row.logits, RowLogits::kAll);
  archive.Value(row.next_token);
  Positions(archive, row.positions);
  archive.Value(row.num_drafts);
  archive.Array(row.drafts);
  archive.Array(row.parents);
}

template <typename Archive, typename Embeddings>
void Fields(Archive& archive, Embeddings& embeddings) requires
    std::is_same_v<std::remove_const_t<Embeddings>, ScheduledEmbeddings> {
  archive.Value(embeddings.row);
  archive.Value(embeddings.first_token);
  Rows(archive, embeddings.rows);
}

template <typename Archive, typename Encode>
void Fields(Archive& archive,
            Encode& encode) requires std::is_same_v<std::remove_const_t<Encode>, ScheduledEncode> {
  archive.Value(encode.slot);
  archive.Array(encode.tokens);
}

template <typename Archive, typename Request>
void Fields(Archive& archive,
            Request& request) requires std::is_same_v<std::remove_const_t<Request>, LogitsRequest> {
  archive.Value(request.slot);
  archive.Value(request.params);
  archive.Array(request.biases);
  archive.Array(request.prompt);
  archive.Array(request.output);
  archive.Value(request.stages);
}

// The vectors that own the structs that are read; null when writing.
struct Kept {
  std::vector<ScheduledRow>* rows = nullptr;
  std::vector<ScheduledEncode>* encodes = nullptr;
  std::vector<LogitsRequest>* logits_requests = nullptr;
  std::vector<ScheduledEmbeddings>* embeddings = nullptr;
};

template <typename Archive, typename Batch>
void Fields(Archive& archive, Batch& batch, const Kept& kept) {
  const auto fields = [&](auto& element) { Fields(archive, element); };
  archive.Array(batch.leaves);
  archive.Array(batch.joins);
  archive.Structs(batch.logits_requests, kept.logits_requests, fields);
  archive.Array(batch.updates);
  archive.Array(batch.swap_outs);
  archive.Array(batch.swap_ins);
  archive.Array(batch.copies);
  archive.Structs(batch.encodes, kept.encodes, fields);
  archive.Structs(batch.rows, kept.rows, fields);
  archive.Structs(batch.embeddings, kept.embeddings, fields);
  Enum(archive, batch.idle, IdleStep::kRunModel);
}

}  // namespace

void WriteBatch(const ScheduledBatch& batch, std::vector<std::byte>& bytes) {
  Writer writer(bytes);
  writer.Value(kMark);
  Fields(writer, batch, Kept());
}

absl::StatusOr<const ScheduledBatch*> BatchReader::Read(absl::Span<const std::byte> bytes) {
  Reader reader(bytes);
  uint64_t mark = 0;
  reader.Value(mark);
  if (mark != kMark) reader.Fail("no mark of this build");
  batch_ = {};
  Fields(reader, batch_,
         {.rows = &rows_,
          .encodes = &encodes_,
          .logits_requests = &logits_requests_,
          .embeddings = &embeddings_});
  REPRISE_RETURN_IF_ERROR(reader.Finish());
  return &batch_;
}

}  // namespace reprise
