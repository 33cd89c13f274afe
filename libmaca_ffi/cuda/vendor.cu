#include "vendor.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <set>

namespace maca_cuda {

namespace {

// One vendor's library: its file names, newest first, what its functions' names begin with, and where wheels put it,
// from the folder that holds them all.
struct Entry {
  VendorLibrary which;
  const char *name, *prefix;
  std::vector<const char*> files, folders;
};
const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = {
      {VendorLibrary::Products,
       "cuBLAS",
       "cublas",
       {"libcublasLt.so.13", "libcublasLt.so.12"},
       {"nvidia/cu13/lib", "nvidia/cublas/lib"}},
      {VendorLibrary::Convolutions, "cuDNN", "cudnn", {"libcudnn.so.9"}, {"nvidia/cudnn/lib"}},
      {VendorLibrary::Products, "mcBLAS", "mcblas", {"libmcblasLt.so", "libmcblas.so"}, {"maca/lib"}},
      {VendorLibrary::Convolutions, "mcDNN", "mcdnn", {"libmcdnn.so"}, {"maca/lib"}},
  };
  return all;
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

// The folders of Python packages from which something is loaded, this library and PyTorch among them.
std::set<std::string> package_folders() {
  std::set<std::string> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        const std::string path = info->dlpi_name ? info->dlpi_name : "";
        for (const char* folder : {"/site-packages/", "/dist-packages/"})
          if (const size_t at = path.find(folder); at != std::string::npos)
            static_cast<std::set<std::string>*>(to)->insert(path.substr(0, at + std::strlen(folder)));
        return 0;
      },
      &found);
  return found;
}

void* open_entry(const Entry& entry) {
  std::vector<std::string> paths;
  const auto open = [&](int flags) -> void* {
    for (const std::string& path : paths)
      if (void* handle = dlopen(path.c_str(), RTLD_NOW | flags)) return handle;
    paths.clear();
    return nullptr;
  };
  if (const char* folder = environment("MACA_VENDOR_FOLDER"))
    for (const char* file : entry.files) paths.push_back(std::string(folder) + "/" + file);
  if (void* handle = open(RTLD_LOCAL)) return handle;
  for (const char* file : entry.files) paths.push_back(file);
  if (void* handle = open(RTLD_NOLOAD)) return handle;
  for (const char* file : entry.files) paths.push_back(file);
  for (const std::string& packages : package_folders())
    for (const char* folder : entry.folders)
      for (const char* file : entry.files) paths.push_back(packages + folder + "/" + file);
  return open(RTLD_LOCAL);
}

std::mutex& opening() {
  static std::mutex mutex;
  return mutex;
}
struct Opened {
  bool is_tried = false;
  const Vendor* vendor = nullptr;
};
Opened& opened(VendorLibrary which) {
  static Opened all[2];
  return all[static_cast<int>(which)];
}

}  // namespace

const Vendor* open_vendor(VendorLibrary which) {
  const char* wanted = environment("MACA_VENDOR_LIBRARIES");
  if (wanted && std::string(wanted) == "0") return nullptr;
  for (const Entry& entry : entries()) {
    if (entry.which != which) continue;
    void* handle = open_entry(entry);
    if (!handle) continue;
    auto* vendor = new Vendor;  // as the library, never closed
    vendor->handle_ = handle, vendor->name_ = entry.name, vendor->prefix_ = entry.prefix;
    return vendor;
  }
  return nullptr;
}

const Vendor* Vendor::find(VendorLibrary which) {
  const std::lock_guard<std::mutex> lock(opening());
  Opened& o = opened(which);
  if (!o.is_tried) o.vendor = open_vendor(which), o.is_tried = true;
  return o.vendor;
}

void* Vendor::symbol(const char* name) const { return dlsym(handle_, (std::string(prefix_) + name).c_str()); }

std::string vendor_libraries() {
  const std::lock_guard<std::mutex> lock(opening());
  std::string text;
  for (const VendorLibrary which : {VendorLibrary::Products, VendorLibrary::Convolutions}) {
    const Vendor* vendor = opened(which).vendor;
    if (!vendor) continue;
    size_t (*version)() = nullptr;
    vendor->get(which == VendorLibrary::Products ? "LtGetVersion" : "GetVersion", version);
    if (!version) continue;  // a file of that name, and no more
    text += std::string(text.empty() ? "" : ", ") + vendor->name();
    const size_t v = version();  // 130100: 13.1.0, and of cuDNN 91900: 9.19.0
    text += " " + std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." + std::to_string(v % 100);
  }
  return text;
}

}  // namespace maca_cuda
