import java.io.ByteArrayOutputStream;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.*; // BufferSupplier until 4.3
import org.apache.kafka.common.utils.internals.*; // BufferSupplier from 4.4 on

/**
 * What Kafka's decoders make of records sections: each line of the input is `codec TAB hexadecimal bytes`, each line of the output is
 * the uncompressed bytes in hexadecimal, or `-` for an error.
 *
 *     java -cp "$(EMBEDLOG_ORACLE_DIR)/VERSION/lib/*" tests/kafka/Sections.java      (needs a JDK)
 */
public class Sections {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.split("\t", -1);
            System.out.println(read(CompressionType.forName(fields[0]), HexFormat.of().parseHex(fields[1])));
        }
    }

    static String read(CompressionType codec, byte[] section) {
        try (InputStream plain = Compression.of(codec).build()
                .wrapForInput(ByteBuffer.wrap(section), RecordBatch.MAGIC_VALUE_V2, BufferSupplier.NO_CACHING)) {
            ByteArrayOutputStream all = new ByteArrayOutputStream();
            for (int next = plain.read(); next >= 0; next = plain.read()) all.write(next);
            return HexFormat.of().formatHex(all.toByteArray());
        } catch (Throwable refused) {
            return "-";
        }
    }
}
