#include "reprise/hf/tensor_copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/hf/element_conversion.h"

namespace reprise {
namespace {

// Large enough to keep disk, link and page tables busy; two per thread take little memory.
constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int kThreadsForGpu = 8;
constexpr std::chrono::milliseconds kProgressInterval(50);

// Rows [begin, end) of a copy. Rows are along the source's first dimension.
struct Piece {
  const TensorCopy* copy = nullptr;
  int64_t begin = 0;
  int64_t end = 0;

  int64_t num_rows() const { return end - begin; }
  // Of the last dimension: in the source, and those that are copied.
  int64_t stored_columns() const { return copy->source->shape.back(); }
  int64_t columns() const {
    return copy->columns.has_value() ? copy->columns->size : stored_columns();
  }
  int64_t first_column() const { return copy->columns.has_value() ? copy->columns->begin : 0; }
  // Of what is copied.
  int64_t row_elements() const {
    const int64_t stored =
        copy->source->num_elements() / std::max<int64_t>(1, copy->source->shape[0]);
    return copy->columns.has_value() ? stored / stored_columns() * columns() : stored;
  }
  int64_t source_row_bytes() const { return row_elements() * SizeOf(copy->source->type); }
  int64_t source_bytes() const { return num_rows() * source_row_bytes(); }
  int64_t target_row_bytes() const { return row_elements() * copy->target.element_size(); }
  int64_t target_bytes() const { return num_rows() * target_row_bytes(); }
  DType from() const { return *ToDType(copy->source->type); }
  DType to() const { return *FromScalarType(copy->target.scalar_type()); }
  bool IsPlain() const {
    return from() == to() && !copy->unzipped_head.has_value() && !copy->is_transposed;
  }
};

// Rows that a piece holds or not, but no part of, since what they hold is reordered.
int64_t WholeRows(const TensorCopy& copy) {
  if (!copy.is_transposed) return copy.unzipped_head.value_or(1);
  const std::vector<int64_t>& shape = copy.source->shape;
  return shape.size() == 2 ? shape[0] : 1;
}

std::vector<Piece> CutIntoPieces(absl::Span<const TensorCopy> copies) {
  std::vector<Piece> pieces;
  for (const TensorCopy& copy : copies) {
    if (copy.target.numel() == 0) continue;
    Piece whole = {.copy = &copy, .begin = 0, .end = copy.source->shape[0]};
    const int64_t unit = WholeRows(copy);
    const int64_t row_bytes = std::max(whole.source_row_bytes(), whole.target_row_bytes());
    const int64_t num_rows = std::max<int64_t>(1, kPieceBytes / row_bytes / unit) * unit;
    for (int64_t begin = 0; begin < whole.end; begin += num_rows) {
      pieces.push_back(
          {.copy = &copy, .begin = begin, .end = std::min(begin + num_rows, whole.end)});
    }
  }
  return pieces;
}

// target[t, r] = source[r, c], where t is the target's row of column c.
template <typename Element>
void Transpose(const TensorCopy& copy, int64_t num_rows, int64_t num_columns, const Element* source,
               Element* target) {
  constexpr int64_t kTile = 32;  // so that the lines of both stay in the L1 cache
  for (int64_t first = 0; first < num_rows; first += kTile) {
    const int64_t last = std::min(first + kTile, num_rows);
    for (int64_t column = 0; column < num_columns; ++column) {
      const int64_t row = copy.unzipped_head.has_value()
                              ? UnzippedRow(column, *copy.unzipped_head, copy.kept_rows)
                              : column;
      for (int64_t r = first; r < last; ++r) {
        target[row * num_rows + r] = source[r * num_columns + column];
      }
    }
  }
}

void ConvertTransposed(const Piece& piece, const char* source, char* target) {
  const std::vector<int64_t>& shape = piece.copy->source->shape;
  const int64_t num_rows = shape[shape.size() - 2];
  const int64_t num_columns = piece.columns();
  const int64_t matrix = num_rows * num_columns;
  const int64_t num_matrices = piece.num_rows() * piece.row_elements() / matrix;
  const int64_t target_bytes = piece.copy->target.element_size();
  std::vector<char> converted(matrix * target_bytes);
  for (int64_t i = 0; i < num_matrices; ++i) {
    ConvertElements(piece.from(), source + i * matrix * SizeOf(piece.copy->source->type),
                    piece.to(), converted.data(), matrix);
    char* const to = target + i * matrix * target_bytes;
    if (target_bytes == 2) {
      Transpose(*piece.copy, num_rows, num_columns,
                reinterpret_cast<const uint16_t*>(converted.data()),
                reinterpret_cast<uint16_t*>(to));
    } else {
      Transpose(*piece.copy, num_rows, num_columns,
                reinterpret_cast<const uint32_t*>(converted.data()),
                reinterpret_cast<uint32_t*>(to));
    }
  }
}

void ConvertRows(const Piece& piece, const char* source, char* target) {
  if (piece.copy->is_transposed) {
    ConvertTransposed(piece, source, target);
    return;
  }
  if (!piece.copy->unzipped_head.has_value()) {
    ConvertElements(piece.from(), source, piece.to(), target,
                    piece.num_rows() * piece.row_elements());
    return;
  }
  for (int64_t row = 0; row < piece.num_rows(); ++row) {
    ConvertElements(piece.from(), source + row * piece.source_row_bytes(), piece.to(),
                    target + UnzippedRow(row, *piece.copy->unzipped_head, piece.copy->kept_rows) *
                                 piece.target_row_bytes(),
                    piece.row_elements());
  }
}

// The buffers of one thread.
class PieceReader {
 public:
  explicit PieceReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Writes the values of the piece, in its target's layout, to `target` in host memory.
  absl::Status Read(const Piece& piece, char* target) {
    if (piece.IsPlain()) return ReadStored(piece, target);
    const size_t size = static_cast<size_t>(piece.source_bytes());
    if (stored_.size() < size) stored_.resize(size);
    REPRISE_RETURN_IF_ERROR(ReadStored(piece, stored_.data()));
    ConvertRows(piece, stored_.data(), target);
    return absl::OkStatus();
  }

 private:
  // The piece's values as the file holds them, without the columns that are not copied.
  absl::Status ReadStored(const Piece& piece, char* target) {
    const TensorView& source = *piece.copy->source;
    if (!piece.copy->columns.has_value()) {
      return checkpoint_.Read(source, piece.begin * piece.source_row_bytes(),
                              absl::MakeSpan(target, static_cast<size_t>(piece.source_bytes())));
    }
    const int64_t line_bytes = piece.columns() * SizeOf(source.type);
    if (line_bytes == 0) return absl::OkStatus();
    const int64_t lines_a_row = piece.source_row_bytes() / line_bytes;
    for (int64_t line = 0; line < piece.num_rows() * lines_a_row; ++line) {
      const int64_t first = (piece.begin * lines_a_row + line) * piece.stored_columns();
      REPRISE_RETURN_IF_ERROR(checkpoint_.Read(
          source, (first + piece.first_column()) * SizeOf(source.type),
          absl::MakeSpan(target + line * line_bytes, static_cast<size_t>(line_bytes))));
    }
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  std::vector<char> stored_;
};

// The elements of the piece in its target, as one dimension.
at::Tensor TargetOf(const Piece& piece) {
  return piece.copy->target.view({-1}).narrow(0, piece.begin * piece.row_elements(),
                                              piece.num_rows() * piece.row_elements());
}

// Copies pieces to a GPU from two slots of pinned memory alternately, on its own stream.
class GpuSender {
 public:
  GpuSender(c10::Device device, int64_t slot_bytes)
      : stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {
    for (int i = 0; i < 2; ++i) {
      slots_.push_back(
          {at::empty({slot_bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true)),
           c10::Event(device.type())});
    }
  }

  absl::Status Send(const Piece& piece, PieceReader& reader) {
    Slot& slot = slots_[next_];
    next_ = 1 - next_;
    slot.sent.synchronize();
    REPRISE_RETURN_IF_ERROR(reader.Read(piece, static_cast<char*>(slot.memory.mutable_data_ptr())));
    const at::Tensor values =
        slot.memory.narrow(0, 0, piece.target_bytes()).view(piece.copy->target.scalar_type());
    const c10::StreamGuard guard(stream_);
    TargetOf(piece).copy_(values, /*non_blocking=*/true);
    slot.sent.record(stream_);
    return absl::OkStatus();
  }

  void Wait() { stream_.synchronize(); }

 private:
  struct Slot {
    at::Tensor memory;  // uint8
    c10::Event sent;
  };

  c10::Stream stream_;
  std::vector<Slot> slots_;
  int next_ = 0;
};

// The pieces still to do, for all threads.
class Progress {
 public:
  explicit Progress(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
    for (const Piece& piece : pieces_) {
      total_bytes_ += piece.source_bytes();
      slot_bytes_ = std::max(slot_bytes_, piece.target_bytes());
    }
  }

  int num_pieces() const { return static_cast<int>(pieces_.size()); }
  int64_t total_bytes() const { return total_bytes_; }
  int64_t num_bytes() const { return num_bytes_; }
  int64_t slot_bytes() const { return slot_bytes_; }

  // Null when nothing is left, or after a failure.
  const Piece* Next() {
    if (failed_) return nullptr;
    const int index = next_++;
    return index < num_pieces() ? &pieces_[index] : nullptr;
  }

  void Done(const Piece& piece) { num_bytes_ += piece.source_bytes(); }

  // A thread has ended, of `num_threads`.
  void End(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    status_.Update(status);
    if (!status.ok()) failed_ = true;
    ++num_ended_;
    changed_.notify_one();
  }

  // Waits for at most kProgressInterval. Returns whether all threads have ended.
  bool WaitFor(int num_threads) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kProgressInterval, [&] { return num_ended_ == num_threads; });
  }

  absl::Status status() {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  const std::vector<Piece> pieces_;
  int64_t total_bytes_ = 0;
  int64_t slot_bytes_ = 0;
  std::atomic<int> next_ = 0;
  std::atomic<int64_t> num_bytes_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::Status status_;
  int num_ended_ = 0;
};

absl::Status CopyToHost(const Checkpoint& checkpoint, Progress& progress) {
  PieceReader reader(checkpoint);
  while (const Piece* const piece = progress.Next()) {
    char* const target = static_cast<char*>(piece->copy->target.mutable_data_ptr());
    REPRISE_RETURN_IF_ERROR(reader.Read(*piece, target + piece->begin * piece->target_row_bytes()));
    progress.Done(*piece);
  }
  return absl::OkStatus();
}

absl::Status CopyToGpu(const Checkpoint& checkpoint, c10::Device device, Progress& progress) {
  return CatchTorch([&]() -> absl::Status {
    PieceReader reader(checkpoint);
    GpuSender sender(device, progress.slot_bytes());
    while (const Piece* const piece = progress.Next()) {
      REPRISE_RETURN_IF_ERROR(sender.Send(*piece, reader));
      progress.Done(*piece);
    }
    sender.Wait();
    return absl::OkStatus();
  });
}

int ChooseNumThreads(const TensorCopyOptions& options, c10::Device device, int num_pieces) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int wanted =
      options.num_threads.value_or(device.is_cpu() ? cores : std::min(cores, kThreadsForGpu));
  return std::clamp(wanted, 1, std::max(1, num_pieces));
}

}  // namespace

// After the kept rows, even rows in the first half and odd rows in the second, in order.
int64_t UnzippedRow(int64_t row, int64_t head, int64_t kept) {
  const int64_t pair_row = row % head - kept;
  if (pair_row < 0) return row;
  return row - pair_row + pair_row / 2 + (pair_row % 2) * ((head - kept) / 2);
}

absl::Status RunTensorCopies(const Checkpoint& checkpoint, absl::Span<const TensorCopy> copies,
                             const TensorCopyOptions& options) {
  Progress progress(CutIntoPieces(copies));
  const auto report = [&] {
    if (options.on_progress) options.on_progress(progress.num_bytes(), progress.total_bytes());
  };
  if (progress.num_pieces() == 0) {
    report();
    return absl::OkStatus();
  }
  const c10::Device device = copies[0].target.device();
  if (!device.is_cpu()) {
    // Earlier work on the targets' memory may still run on another stream.
    REPRISE_RETURN_IF_ERROR(CatchTorch([&] {
      c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
      return absl::OkStatus();
    }));
  }
  const int num_threads = ChooseNumThreads(options, device, progress.num_pieces());
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      progress.End(device.is_cpu() ? CopyToHost(checkpoint, progress)
                                   : CopyToGpu(checkpoint, device, progress));
    });
  }
  while (!progress.WaitFor(num_threads)) report();
  for (std::thread& thread : threads) thread.join();
  REPRISE_RETURN_IF_ERROR(progress.status());
  report();
  return absl::OkStatus();
}

}  // namespace reprise
